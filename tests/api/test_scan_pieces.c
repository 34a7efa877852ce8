/* KILN_REMAT=memory cuts the way back through a long scan into pieces: the same bits, in less memory. */
#include "each_mode.h"

#include <math.h>
#include <string.h>

enum { WIDE = 3, LONGEST = 64 };

static kiln_tensor *mixed(kiln_tensor *x, kiln_tensor *w)
{
    return kiln_reshape(kiln_matmul(kiln_reshape(x, KILN_SHAPE(1, WIDE)), w), KILN_SHAPE(WIDE));
}

/* A carry that is no float, numbers of steps, draws, xs, ys of floats and bools, a captured parameter. */
static void cell(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor *noise = kiln_mul(kiln_uniform(KILN_F32, KILN_SHAPE(WIDE), 0, 1), 0.1);
    carry_out[0] = kiln_tanh(kiln_add(kiln_add(mixed(carry[0], user), kiln_mul(x[0], kiln_cast(carry[1], KILN_F32))), noise));
    carry_out[1] = kiln_remainder(kiln_add(carry[1], i), 5);
    y[0] = kiln_mul(carry[0], kiln_sin(x[0]));
    y[1] = kiln_gt(x[0], 0);
}

/* Elementwise: a kernel with the loop inside. */
static void alone(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor *w = user;
    (void)i;
    carry_out[0] = kiln_sin(kiln_add(kiln_mul(carry[0], kiln_sum_axes(w, KILN_AXES(0), false)), x[0]));
    carry_out[1] = kiln_add(carry[1], 1);
    y[0] = kiln_mul(carry_out[0], x[0]);
    y[1] = kiln_lt(carry[0], x[0]);
}

typedef struct Scan {
    kiln_scan_body *body;
    int64_t length;
    unsigned flags;
} Scan;

static kiln_tensor *loss_of(const Scan *s, kiln_tensor **p)
{
    kiln_tensor *init[] = {p[0], kiln_full(KILN_I64, KILN_SHAPE(), 1)}, *last[2], *ys[2];
    if (kiln_scan(s->body, -1, s->flags, 2, init, last, 1, &p[1], 2, ys, p[2]) != KILN_OK)
        return NULL;
    return kiln_add(kiln_sum(kiln_square(last[0])), kiln_sum(kiln_mul(ys[0], kiln_cast(ys[1], KILN_F32))));
}

/* Its gradients, then (`twice`) those of the sum of one of them. */
enum { VALUES = 2 * (WIDE + LONGEST * WIDE + WIDE * WIDE) };
static size_t gradients(const Scan *s, const char *remat, bool twice, float *to)
{
    size_t n = 0;
    kiln_scope *scope = kiln_scope_begin();
    set_option("remat", remat);
    kiln_seed(5);
    kiln_tensor *xs = kiln_reshape(kiln_sin(kiln_arange(KILN_F32, 0, (double)(WIDE * s->length), 1)), KILN_SHAPE(s->length, WIDE));
    kiln_tensor *p[] = {
        kiln_param(kiln_full(KILN_F32, KILN_SHAPE(WIDE), 0.4)), kiln_param(xs),
        kiln_param(kiln_mul(kiln_cos(kiln_reshape(kiln_arange(KILN_F32, 0, WIDE * WIDE, 1), KILN_SHAPE(WIDE, WIDE))), 0.3))};
    kiln_tensor *g[2][3];
    cr_assert_eq(kiln_grad(loss_of(s, p), p, 3, g[0]), KILN_OK, "%s", kiln_error_message());
    if (twice)
        cr_assert_eq(kiln_grad(kiln_sum(kiln_square(g[0][2])), p, 3, g[1]), KILN_OK, "%s", kiln_error_message());
    for (int k = 0; k < (twice ? 6 : 3); k++) {
        size_t some = k % 3 == 0 ? WIDE : k % 3 == 1 ? (size_t)s->length * WIDE : WIDE * WIDE;
        cr_assert_eq(kiln_read(g[k / 3][k % 3], KILN_F32, to + n, sizeof *to * some), KILN_OK, "%s", kiln_error_message());
        n += some;
    }
    kiln_scope_end(scope);
    return n;
}

/* Lengths that are not cut, are squares, products, primes; up and down. */
STRICT_TEST(scan_pieces, the_same_bits)
{
    static const int64_t lengths[] = {0, 1, 15, 16, 17, 37, 48, 64};
    static kiln_scan_body *const bodies[] = {cell, alone};
    static float want[VALUES], got[VALUES];
    for (int k = 0; k < 32; k++) {
        const Scan s = {bodies[k / 16], lengths[k % 8], k / 8 % 2 ? KILN_SCAN_REVERSE : 0};
        const size_t n = gradients(&s, "auto", false, want);
        cr_assert_eq(gradients(&s, "memory", false, got), n);
        for (size_t i = 0; i < n; i++)
            cr_assert(memcmp(&got[i], &want[i], sizeof *got) == 0, "%d steps, case %d, value %d: %.9g, not %.9g", (int)s.length, k, (int)i,
                      (double)got[i], (double)want[i]);
    }
}

/* Second derivatives go through the pieces' own loops; their sums have another order. */
STRICT_TEST(scan_pieces, derivatives_of_derivatives)
{
    static float want[VALUES], got[VALUES];
    for (int k = 0; k < 4; k++) {
        const Scan s = {k % 2 ? alone : cell, k / 2 ? 16 : 19, k % 2 ? KILN_SCAN_REVERSE : 0};
        const size_t n = gradients(&s, "auto", true, want);
        cr_assert_eq(gradients(&s, "memory", true, got), n);
        for (size_t i = 0; i < n; i++)
            cr_assert_float_eq(got[i], want[i], 1e-4f * (1 + fabsf(want[i])), "case %d, value %d: %.9g, not %.9g", k, (int)i,
                               (double)got[i], (double)want[i]);
    }
}

/* One step of a function: replayed, and at another length. */
static void train(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Scan s = {user ? cell : alone, 0, 0};
    out[0] = loss_of(&s, in);
}

Test(scan_pieces, functions_of_any_length)
{
    set_option("math", "strict");
    for (int k = 0; k < 2; k++) {
        static float want[2][LONGEST * WIDE], got[LONGEST * WIDE];
        static const int wrt[] = {0, 1, 2};
        for (int memory = 0; memory < 2; memory++) {
            set_option("remat", memory ? "memory" : "auto");
            kiln_function *f = kiln_value_and_grad(train, 3, 1, wrt, 3, k ? "cell" : NULL);
            for (int64_t length = 20; length < 60; length += 13) {
                kiln_scope *scope = kiln_scope_begin();
                kiln_tensor *in[] = {kiln_full(KILN_F32, KILN_SHAPE(WIDE), 0.4),
                                     kiln_reshape(kiln_sin(kiln_arange(KILN_F32, 0, (double)(WIDE * length), 1)), KILN_SHAPE(length, WIDE)),
                                     kiln_mul(kiln_eye(KILN_F32, WIDE, WIDE, 0), 0.5)},
                            *out[4];
                for (int run = 0; run < 2; run++) {
                    kiln_seed(5);
                    cr_assert_eq(kiln_function_call(f, in, out), KILN_OK, "%s", kiln_error_message());
                    cr_assert_eq(kiln_read(out[2], KILN_F32, memory ? got : want[run], sizeof *got * (size_t)(length * WIDE)), KILN_OK);
                }
                kiln_scope_end(scope);
            }
            kiln_function_free(f);
        }
        cr_assert_arr_eq(got, want[1], sizeof *got * 46 * WIDE);
    }
    end_mode();
}

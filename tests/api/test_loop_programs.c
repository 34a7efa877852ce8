/* Whole programs with loops inside: each is one program and one evaluation, with no sync point between its steps. */
#include "api.h"

/* How much one sync point did. */
typedef struct Work {
    kiln_stats before;
    int evals, kernels, compiles;
} Work;

static void begin(Work *w) { kiln_get_stats(&w->before); }

static void end(Work *w)
{
    kiln_stats after = stats_now();
    w->evals = (int)(after.evals - w->before.evals);
    w->kernels = (int)(after.kernels - w->before.kernels);
    w->compiles = (int)(after.compiles - w->before.compiles);
}

/* --- Newton's iteration, for each number until its own end ---------------------------------------------------------------- */

static kiln_tensor *not_there(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_gt(kiln_abs(kiln_sub(kiln_square(state[0]), state[1])), kiln_mul(state[1], 1e-12));
}

static void newton(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(kiln_add(in[0], kiln_div(in[1], in[0])), 0.5);
    out[1] = in[1];
    out[2] = kiln_add(in[2], 1);
}

static void root_of_one(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *state[] = {kiln_ones(KILN_F64, KILN_SHAPE()), in[0], kiln_int(0)};
    if (kiln_while(not_there, newton, 3, state, 100, state, user) == KILN_OK) {
        out[0] = state[0];
        out[1] = state[2];
    }
}

API_TEST(loop_programs, newton_ends_for_each_number_by_itself)
{
    const double x[] = {1, 2, 1e-4, 1e6};
    kiln_tensor *in = kiln_from(KILN_F64, KILN_SHAPE(4), x), *out[2];
    Work w;
    OK(kiln_map(root_of_one, 1, &in, NULL, 0, 2, out, NULL));
    begin(&w);
    int64_t steps[4], most = 0;
    double root[4];
    OK(kiln_read(out[0], KILN_F64, root, sizeof root));
    end(&w);
    cr_assert_leq(w.evals, 1);
    OK(kiln_read(out[1], KILN_I64, steps, sizeof steps));
    for (int k = 0; k < 4; k++) {
        double want = 1;
        int64_t n = 0;
        for (; fabs(want * want - x[k]) > x[k] * 1e-12; n++)
            want = (want + x[k] / want) * 0.5;
        cr_assert(root[k] == want && steps[k] == n, "root of %g: %.17g after %d steps, not %.17g after %d", x[k], root[k], (int)steps[k],
                  want, (int)n);
        most = n > most ? n : most;
    }
    cr_assert(steps[0] == 0 && most > 10);
}

/* --- the Mandelbrot set --------------------------------------------------------------------------------------------------- */

enum { WIDE = 24, HIGH = 16, MOST_STEPS = 50 };

static kiln_tensor *bounded(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_logical_and(kiln_le(kiln_add(kiln_square(state[0]), kiln_square(state[1])), 4), kiln_lt(state[4], MOST_STEPS));
}

static void square_and_add(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_add(kiln_sub(kiln_square(in[0]), kiln_square(in[1])), in[2]);
    out[1] = kiln_add(kiln_mul(kiln_mul(in[0], in[1]), 2), in[3]);
    out[2] = in[2];
    out[3] = in[3];
    out[4] = kiln_add(in[4], 1);
}

static void escape(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *zero = kiln_zeros(KILN_F64, KILN_SHAPE()), *state[] = {zero, zero, in[0], in[1], kiln_full(KILN_I64, KILN_SHAPE(), 0)};
    if (kiln_while(bounded, square_and_add, 5, state, 0, state, user) == KILN_OK)
        out[0] = state[4];
}

static void escape_row(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)kiln_map(escape, 2, in, (int[]){0, KILN_WHOLE}, 0, 1, out, user);
}

API_TEST(loop_programs, mandelbrot_set)
{
    set_option("math", "strict");
    kiln_tensor *x = kiln_linspace(KILN_F64, -2, 0.5, WIDE), *y = kiln_linspace(KILN_F64, -1.2, 1.2, HIGH), *out;
    double xs[WIDE], ys[HIGH];
    int64_t got[HIGH][WIDE];
    Work w;
    OK(kiln_read(x, KILN_F64, xs, sizeof xs));
    OK(kiln_read(y, KILN_F64, ys, sizeof ys));
    OK(kiln_map(escape_row, 2, (kiln_tensor *[]){x, y}, (int[]){KILN_WHOLE, 0}, 0, 1, &out, NULL));
    begin(&w);
    OK(kiln_read(out, KILN_I64, got, sizeof got));
    end(&w);
    cr_assert_leq(w.evals, 1);
    cr_assert_leq(w.compiles, 1);
    int64_t inside = 0;
    for (int r = 0; r < HIGH; r++)
        for (int c = 0; c < WIDE; c++) {
            double a = 0, b = 0;
            int64_t n = 0;
            for (; a * a + b * b <= 4 && n < MOST_STEPS; n++) {
                double next = a * a - b * b + xs[c];
                b = a * b * 2 + ys[r];
                a = next;
            }
            cr_assert(got[r][c] == n, "%g + %g i: %d steps, not %d", xs[c], ys[r], (int)got[r][c], (int)n);
            inside += n == MOST_STEPS;
        }
    cr_assert(inside > 40 && inside < 200, "%d points inside", (int)inside);
}

/* --- a decoder that goes on until it says that it is done ------------------------------------------------------------------ */

enum { WORDS = 11, WIDTH = 8, ROOM = 20, LAST_WORD = 3 };

typedef struct Decoder {
    kiln_tensor *embedding, *mix, *head;
    int *calls;
} Decoder;

static kiln_tensor *goes_on(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_logical_and(kiln_ne(state[2], LAST_WORD), kiln_lt(state[1], ROOM - 1));
}

/* State: the words so far, how many they are, the last one, what is remembered of them. */
static void say_one(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Decoder *d = user;
    ++*d->calls;
    kiln_tensor *word = kiln_take(d->embedding, kiln_reshape(in[2], KILN_SHAPE(1)), 0);
    out[3] = kiln_tanh(kiln_add(kiln_matmul(in[3], d->mix), word));
    kiln_tensor *next = kiln_argmax_axis(kiln_matmul(out[3], d->head), 1, false);
    out[1] = kiln_add(in[1], 1);
    out[0] = kiln_scatter(in[0], kiln_reshape(out[1], KILN_SHAPE(1)), next, 0, KILN_SCATTER_SET);
    out[2] = kiln_reshape(next, KILN_SHAPE());
}

API_TEST(loop_programs, decoder_says_words_until_its_last_one)
{
    set_option("math", "strict");
    kiln_seed(19);
    int calls = 0, ended = 0;
    Decoder d = {.embedding = kiln_normal(KILN_F32, KILN_SHAPE(WORDS, WIDTH), 0, 2),
                 .mix = kiln_normal(KILN_F32, KILN_SHAPE(WIDTH, WIDTH), 0, 0.6),
                 .head = kiln_normal(KILN_F32, KILN_SHAPE(WIDTH, WORDS), 0, 1),
                 .calls = &calls};
    OK(kiln_eval_many((kiln_tensor *[]){d.embedding, d.mix, d.head}, 3));
    for (int first = 0; first < WORDS; first++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *words = kiln_full(KILN_I64, KILN_SHAPE(ROOM), -1), *memory = kiln_zeros(KILN_F32, KILN_SHAPE(1, WIDTH));
        kiln_tensor *start = kiln_full(KILN_I64, KILN_SHAPE(), first),
                    *state[] = {words, kiln_full(KILN_I64, KILN_SHAPE(), 0), start, memory}, *said[4];
        int64_t got[ROOM], want[ROOM], n, last = first;
        Work w;
        OK(kiln_eval_many(state, 4));
        calls = 0;
        OK(kiln_while(goes_on, say_one, 4, state, ROOM, said, &d));
        cr_assert_eq(calls, 1);
        begin(&w);
        OK(kiln_read(said[0], KILN_I64, got, sizeof got));
        end(&w);
        cr_assert_leq(w.evals, 1);
        cr_assert(first < 2 || w.compiles == 0, "the start is part of what was compiled");
        for (n = 0; last != LAST_WORD && n < ROOM - 1; n++) { /* with a sync point for each word */
            say_one(state, state, &d);
            OK(kiln_item_int(state[2], &last));
        }
        OK(kiln_read(state[0], KILN_I64, want, sizeof want));
        cr_assert(memcmp(got, want, sizeof got) == 0, "begins with %d", first);
        ended += last == LAST_WORD && n > 0;
        kiln_scope_end(scope);
    }
    cr_assert(ended > 0, "none came to the last word");
}

/* --- a recurrent network over sequences of many lengths -------------------------------------------------------------------- */

static void cell(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor **weights = user;
    (void)i, (void)y;
    carry_out[0] = kiln_tanh(kiln_add(kiln_matmul(carry[0], weights[0]), kiln_matmul(x[0], weights[1])));
}

API_TEST(loop_programs, recurrent_network_over_many_lengths)
{
    char mode[16];
    OK(kiln_get_option("mode", mode, sizeof mode));
    kiln_seed(4);
    kiln_tensor *weights[] = {kiln_normal(KILN_F32, KILN_SHAPE(6, 6), 0, 0.5), kiln_normal(KILN_F32, KILN_SHAPE(2, 6), 0, 0.5)};
    OK(kiln_eval_many(weights, 2));
    for (int64_t length = 3; length < 40; length += 3) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *h = kiln_zeros(KILN_F32, KILN_SHAPE(1, 6)), *xs = kiln_normal(KILN_F32, KILN_SHAPE(length, 1, 2), 0, 1), *last;
        float got[6];
        Work w;
        OK(kiln_eval(h));
        OK(kiln_eval(xs));
        OK(kiln_scan(cell, -1, 0, 1, &h, &last, 1, &xs, 0, NULL, weights));
        begin(&w);
        OK(kiln_read(last, KILN_F32, got, sizeof got));
        end(&w);
        cr_assert_leq(w.evals, 1);
        cr_assert(length < 9 || w.compiles == 0, "length %d: compiled again", (int)length);
        if (strcmp(mode, "jit") == 0)
            cr_assert(w.kernels % length == 0 && w.kernels <= 3 * length, "%d kernels for %d steps", w.kernels, (int)length);
        for (int64_t i = 0; i < length; i++) {
            kiln_tensor *x = kiln_select(xs, 0, i);
            cell(NULL, &h, &x, &h, NULL, weights);
        }
        float want[6];
        OK(kiln_read(h, KILN_F32, want, sizeof want));
        for (int k = 0; k < 6; k++)
            cr_assert(fabsf(got[k] - want[k]) < 1e-5f, "length %d: %g, not %g", (int)length, (double)got[k], (double)want[k]);
        kiln_scope_end(scope);
    }
}

/* --- a long scan in pieces: what its gradient holds -------------------------------------------------------------------------- */

enum { PIECES = 32, ROWS_HELD = 16 };

static void turn_by(kiln_tensor *i, kiln_tensor **h, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    kiln_tensor **w = user;
    (void)i, (void)x, (void)y;
    next[0] = kiln_tanh(kiln_matmul(h[0], w[0]));
}

static void turn_piece(kiln_tensor *i, kiln_tensor **h, kiln_tensor **x, kiln_tensor **next, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    (void)kiln_scan(turn_by, PIECES, 0, 1, h, next, 0, NULL, 0, NULL, user);
}

static int64_t gradient_peak(bool pieces, double *grad)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *w = kiln_param(kiln_mul(kiln_eye(KILN_F64, ROWS_HELD, ROWS_HELD, 0), 0.99)), *end, *g;
    kiln_tensor *h = kiln_full(KILN_F64, KILN_SHAPE(ROWS_HELD, ROWS_HELD), 0.5);
    OK(kiln_eval(w));
    OK(kiln_eval(h));
    kiln_reset_stats();
    kiln_stats before = stats_now();
    if (pieces)
        OK(kiln_scan(turn_piece, PIECES, 0, 1, &h, &end, 0, NULL, 0, NULL, &w));
    else
        OK(kiln_scan(turn_by, PIECES * PIECES, 0, 1, &h, &end, 0, NULL, 0, NULL, &w));
    OK(kiln_grad(kiln_sum(end), &w, 1, &g));
    OK(kiln_read(g, KILN_F64, grad, sizeof *grad * ROWS_HELD * ROWS_HELD));
    kiln_stats after = stats_now();
    kiln_scope_end(scope);
    return after.peak_bytes - before.live_bytes;
}

Test(loop_programs, a_scan_of_scans_holds_the_root_of_its_steps)
{
    static double flat[ROWS_HELD * ROWS_HELD], pieces[ROWS_HELD * ROWS_HELD];
    int64_t carry = (int64_t)sizeof flat, all = gradient_peak(false, flat), some = gradient_peak(true, pieces);
    cr_assert(all >= PIECES * PIECES * carry, "%d bytes", (int)all);
    cr_assert(some < (2 * PIECES + 40) * carry, "%d bytes, %d in one loop", (int)some, (int)all);
    for (int k = 0; k < ROWS_HELD * ROWS_HELD; k++)
        cr_assert(fabs(flat[k] - pieces[k]) <= 1e-9 * fabs(flat[k]) + 1e-30, "%d: %g and %g", k, flat[k], pieces[k]);
    set_option("remat", "memory"); /* one loop, which is cut by kiln: sums have the order that they had */
    some = gradient_peak(false, pieces);
    cr_assert(some < (2 * PIECES + 40) * carry, "%d bytes, %d in one loop", (int)some, (int)all);
    cr_assert_arr_eq(pieces, flat, sizeof flat);
    end_mode();
}

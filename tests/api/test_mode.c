/* Modes: layers that see each op, in which order, what they may give; autocast; the log of ops; functions that are called under them. */
#include "api.h"
#include "tests/support/sanitizer.h"
#include "tests/support/slice.h"

#include <stdio.h>
#include <threads.h>

static void expect_text(const char *got, const char *want) { cr_expect(strcmp(got, want) == 0, "\"%s\", not \"%s\"", got, want); }

static void expect_null(const void *x) { cr_expect(!x, "no error"); }

/* --- what they see -------------------------------------------------------------------------------------------------- */

typedef struct Watcher {
    char text[4096];
    const char *sign;
    int n, ended;
} Watcher;

static kiln_tensor *watch(const kiln_op_call *call, void *user)
{
    Watcher *w = user;
    size_t n = strlen(w->text);
    const char *slash = call->file ? strrchr(call->file, '/') : NULL;
    snprintf(w->text + n, sizeof w->text - n, "%s%s(%d) %s %s; ", w->sign, call->op, call->n_in, call->function, slash ? slash + 1 : "?");
    w->n++;
    return kiln_mode_next(call, call->in);
}

static void ended(void *user) { ((Watcher *)user)->ended++; }

API_TEST(mode, sees_each_op_above_what_is_below)
{
    Watcher a = {.sign = "a:"}, b = {.sign = "b:"};
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2), *y;
    kiln_mode *first = kiln_mode_push(watch, ended, &a), *second = kiln_mode_push(watch, ended, &b);
    cr_assert(first && second, "%s", kiln_error_message());
    y = kiln_exp(kiln_mul(x, x));
    expect_text(a.text, "a:mul(2) kiln_mul test_mode.c; a:exp(1) kiln_exp test_mode.c; ");
    expect_text(b.text, "b:mul(2) kiln_mul test_mode.c; b:exp(1) kiln_exp test_mode.c; ");
    EXPECT(y, KILN_F32, KILN_SHAPE(2), 1e-6, exp(1), exp(4));
    fails_with(kiln_mode_pop(first), KILN_INVALID, "not the innermost one of this thread, which is of kiln_mode_push: pop that first");
    cr_expect(a.ended == 0 && b.ended == 0);
    OK(kiln_mode_pop(second));
    (void)kiln_neg(x);
    cr_expect(b.n == 2 && a.n == 3 && b.ended == 1);
    OK(kiln_mode_pop(first));
    (void)kiln_neg(x);
    cr_expect(a.n == 3 && a.ended == 1);
    OK(kiln_mode_pop(NULL));
}

static kiln_tensor *twice_as_much(const kiln_op_call *call, void *user)
{
    kiln_tensor *y = kiln_mode_next(call, call->in);
    if (strcmp(call->op, "exp") == 0 && ++*(int *)user == 1)
        y = kiln_add(y, kiln_mode_next(call, call->in)); /* as often as one likes */
    return y;
}

static kiln_tensor *nothing_new(const kiln_op_call *call, void *user)
{
    (void)user;
    return strcmp(call->op, "neg") == 0 ? call->in[0] : kiln_mode_next(call, call->in);
}

/* What one gives goes on, what it recorded on the way is seen by those below alone, and a value that somebody has stays what it is. */
API_TEST(mode, gives_something_else)
{
    int n = 0;
    Watcher below = {.sign = ""};
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(2), 1, 2)), *y, *g;
    kiln_mode *watcher = kiln_mode_push(watch, NULL, &below), *more = kiln_mode_push(twice_as_much, NULL, &n);
    y = kiln_exp(x);
    expect_text(below.text, "exp(1) kiln_exp test_mode.c; exp(1) kiln_exp test_mode.c; add(2) kiln_add test_mode.c; ");
    OK(kiln_mode_pop(more));
    OK(kiln_mode_pop(watcher));
    OK(kiln_grad(kiln_sum(y), &x, 1, &g));
    EXPECT(y, KILN_F32, KILN_SHAPE(2), 1e-6, 2 * exp(1), 2 * exp(2));
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 1e-6, 2 * exp(1), 2 * exp(2));
    more = kiln_mode_push(nothing_new, NULL, NULL);
    kiln_tensor *z = kiln_neg(x), *stopped = kiln_stop_gradient(kiln_neg(x));
    OK(kiln_mode_pop(more));
    OK(kiln_grad(kiln_sum(kiln_mul(z, stopped)), &x, 1, &g));
    EXPECT(g, KILN_F32, KILN_SHAPE(2), 0, 1, 2);
}

typedef enum Misuse { SHAPE, DTYPE, NOTHING, FAILS, WEAK, MISUSES } Misuse;

static kiln_tensor *misuse(const kiln_op_call *call, void *user)
{
    kiln_tensor *y = kiln_mode_next(call, call->in);
    if (strcmp(call->op, "exp") != 0)
        return y;
    switch (*(Misuse *)user) {
    case SHAPE: return kiln_sum(y);
    case DTYPE: return kiln_cast(y, KILN_F64);
    case NOTHING: return NULL;
    case FAILS: return kiln_reshape(y, KILN_SHAPE(7));
    case WEAK: return kiln_scalar(1);
    case MISUSES: break;
    }
    return y;
}

API_TEST(mode, refuses)
{
    static const struct {
        kiln_status status;
        const char *text;
    } bad[] = {{KILN_BAD_SHAPE, "kiln_exp: the callback of a mode gave f32[] for exp, which is f32[2] (test_mode.c:"},
               {KILN_BAD_DTYPE, "kiln_exp: the callback of a mode gave f64[2] for exp, which is f32[2] (test_mode.c:"},
               {KILN_INVALID, "kiln_exp: the callback of a mode gave NULL for exp (test_mode.c:"},
               {KILN_BAD_SHAPE, "kiln_reshape: "},
               {KILN_BAD_DTYPE, "kiln_exp: the callback of a mode gave weak float for exp"}};
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    Misuse how = SHAPE;
    kiln_mode *mode = kiln_mode_push(misuse, NULL, &how);
    for (; how < MISUSES; how++) {
        expect_null(kiln_exp(x));
        fails_with(kiln_error_status(), bad[how].status, bad[how].text);
    }
    EXPECT(kiln_exp(x), KILN_F32, KILN_SHAPE(2), 1e-6, exp(1), exp(2));
    OK(kiln_mode_pop(mode));
    expect_null(kiln_mode_push(NULL, NULL, NULL));
    fails_with(kiln_error_status(), KILN_INVALID, "needs a callback");
    expect_null(kiln_mode_next(NULL, NULL));
    fails_with(kiln_error_status(), KILN_INVALID, "needs the call");
    expect_null(kiln_autocast_push(KILN_F64));
    fails_with(kiln_error_status(), KILN_BAD_DTYPE, "low is f64");
}

/* --- functions ---------------------------------------------------------------------------------------------------------- */

static void network(kiln_tensor **in, kiln_tensor **out, void *user)
{
    ++*(int *)user;
    out[0] = kiln_softmax(kiln_matmul(kiln_tanh(kiln_matmul(in[0], in[1])), in[1]), 1);
}

static void leaves_one(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)kiln_autocast_push(KILN_BF16);
    network(in, out, user);
}

/* Replayed under autocast, for each dtype a trace; run anew where a layer wants to see each op; a layer that a body leaves ends with it. */
API_TEST(mode, functions_are_traced_for_each)
{
    enum { PLAIN, LOW, OFF, WATCHED, WAYS };
    int runs = 0, want[] = {1, 2, 3, 6};
    char text[16];
    Watcher w = {.sign = ""};
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(4, 4), -1, 1), *in[] = {x, kiln_uniform(KILN_F32, KILN_SHAPE(4, 4), -1, 1)},
                *out[WAYS];
    OK(kiln_eval_many(in, 2));
    OK(kiln_get_option("mode", text, sizeof text));
    bool replays = strcmp(text, "eager") != 0;
    kiln_function *f = kiln_function_new(network, 2, 1, &runs), *g = kiln_function_new(leaves_one, 2, 1, &runs);
    for (int way = 0; way < WAYS; way++) {
        kiln_mode *mode = way == LOW       ? kiln_autocast_push(KILN_BF16)
                          : way == OFF     ? kiln_autocast_push(KILN_F32)
                          : way == WATCHED ? kiln_mode_push(watch, NULL, &w)
                                           : NULL;
        for (int i = 0; i < 3; i++)
            OK(kiln_function_call(f, in, &out[way]));
        cr_expect(!replays || runs == want[way], "%d runs, way %d", runs, way);
        OK(kiln_mode_pop(mode));
    }
    cr_expect(w.n > 10 && strstr(w.text, "matmul(2) kiln_matmul"), "%s", w.text);
    float a[16], b[16], c[16];
    OK(kiln_read(out[PLAIN], KILN_F32, a, sizeof a));
    OK(kiln_read(out[LOW], KILN_F32, b, sizeof b));
    OK(kiln_read(out[OFF], KILN_F32, c, sizeof c));
    cr_expect(memcmp(a, c, sizeof a) == 0 && memcmp(a, b, sizeof a) != 0);
    kiln_tensor *left;
    OK(kiln_function_call(g, in, &left));
    OK(kiln_function_call(g, in, &left));
    OK(kiln_read(left, KILN_F32, c, sizeof c));
    cr_expect(memcmp(b, c, sizeof b) == 0, "a layer that a body pushes is of the body");
    EXPECT(kiln_sum(kiln_matmul(F32(KILN_SHAPE(1, 1), 257), F32(KILN_SHAPE(1, 1), 1))), KILN_F32, KILN_SHAPE(), 0, 257);
    kiln_function_free(f);
    kiln_function_free(g);
}

/* A layer's callback that calls a function, and pops what is below it. */
typedef struct Caller {
    kiln_function *f;
    kiln_tensor **in, *out;
    kiln_mode *below;
} Caller;

static kiln_tensor *calls_a_function(const kiln_op_call *call, void *user)
{
    Caller *c = user;
    if (strcmp(call->op, "sin") == 0) {
        OK(kiln_function_call(c->f, c->in, &c->out));
        c->out = kiln_retain(c->out);
        fails_with(kiln_mode_pop(c->below), KILN_INVALID, "a mode above it is at work");
    }
    return kiln_mode_next(call, call->in);
}

/* What a layer that is masked hides is hidden from a function that is traced meanwhile, too: it is no template of the one below. */
API_TEST(mode, a_function_that_a_callback_calls)
{
    int runs = 0;
    kiln_tensor *in[] = {kiln_uniform(KILN_F32, KILN_SHAPE(4, 4), -1, 1), kiln_uniform(KILN_F32, KILN_SHAPE(4, 4), -1, 1)}, *plain, *low,
                *again;
    OK(kiln_eval_many(in, 2));
    kiln_function *f = kiln_function_new(network, 2, 1, &runs), *fresh = kiln_function_new(network, 2, 1, &runs);
    OK(kiln_function_call(fresh, in, &plain));
    kiln_mode *below = kiln_autocast_push(KILN_BF16);
    OK(kiln_function_call(fresh, in, &again));
    Caller caller = {.f = f, .in = in, .below = below};
    kiln_mode *caller_mode = kiln_mode_push(calls_a_function, NULL, &caller), *off = kiln_autocast_push(KILN_F32);
    cr_assert(kiln_sin(in[0]) && caller.out, "%s", kiln_error_message());
    OK(kiln_mode_pop(off));
    OK(kiln_mode_pop(caller_mode));
    OK(kiln_function_call(f, in, &low));
    OK(kiln_mode_pop(below));
    float a[16], b[16], c[16], d[16];
    OK(kiln_read(plain, KILN_F32, a, sizeof a));
    OK(kiln_read(caller.out, KILN_F32, b, sizeof b));
    OK(kiln_read(low, KILN_F32, c, sizeof c));
    OK(kiln_read(again, KILN_F32, d, sizeof d));
    cr_expect(memcmp(a, b, sizeof a) == 0, "hidden, but lowered");
    cr_expect(memcmp(c, d, sizeof c) == 0 && memcmp(a, c, sizeof a) != 0, "a template of another layer");
    kiln_release(caller.out);
    kiln_function_free(f);
    kiln_function_free(fresh);
}

/* --- autocast ------------------------------------------------------------------------------------------------------------- */

/* The products, spelled out. */
static kiln_tensor *low_product(kiln_tensor *a, kiln_tensor *b, kiln_dtype low)
{
    return kiln_cast(kiln_matmul(kiln_cast(a, low), kiln_cast(b, low)), KILN_F32);
}

static void same(kiln_tensor *a, kiln_tensor *b, const char *what)
{
    static float x[1 << 12], y[1 << 12];
    size_t n = (size_t)kiln_numel(a) * sizeof *x;
    cr_assert(n <= sizeof x && kiln_numel(a) == kiln_numel(b) && kiln_dtype_of(a) == KILN_F32, "%s", what);
    OK(kiln_read(a, KILN_F32, x, n));
    OK(kiln_read(b, KILN_F32, y, n));
    cr_expect(memcmp(x, y, n) == 0, "%s: %g, not %g", what, (double)x[0], (double)y[0]);
}

API_TEST(mode, autocast_is_the_casts_spelled_out)
{
    static const kiln_dtype lows[] = {KILN_BF16, KILN_F16};
    kiln_seed(3);
    kiln_tensor *x = kiln_param(kiln_uniform(KILN_F32, KILN_SHAPE(6, 8), -1, 1)),
                *w = kiln_param(kiln_uniform(KILN_F32, KILN_SHAPE(8, 8), -1, 1)), *p[] = {x, w};
    OK(kiln_eval_many(p, 2));
    for (int k = 0; k < 2; k++) {
        kiln_tensor *got[2], *want[2];
        kiln_mode *mode = kiln_autocast_push(lows[k]);
        kiln_tensor *y = kiln_softmax(kiln_matmul(kiln_exp(kiln_matmul(x, w)), w), 1);
        kiln_mode *off = kiln_autocast_push(KILN_F32), *again = kiln_autocast_push(lows[!k]);
        kiln_tensor *other = kiln_matmul(x, w);
        OK(kiln_mode_pop(again));
        kiln_tensor *plain = kiln_matmul(x, w);
        OK(kiln_mode_pop(off));
        kiln_tensor *exact = kiln_matmul(kiln_cast(x, KILN_F64), kiln_cast(w, KILN_F64)),
                    *low = kiln_matmul(kiln_cast(x, lows[k]), kiln_cast(w, lows[k]));
        kiln_tensor *loss = kiln_sum(kiln_square(y));
        OK(kiln_grad(loss, p, 2, got)); /* inside: what was recorded is differentiated, and not lowered once more */
        OK(kiln_mode_pop(mode));
        same(other, low_product(x, w, lows[!k]), "the innermost one counts");
        same(plain, kiln_matmul(x, w), "off");
        cr_expect(kiln_dtype_of(exact) == KILN_F64 && kiln_dtype_of(low) == lows[k]);
        kiln_tensor *spelled = kiln_softmax(low_product(kiln_exp(low_product(x, w, lows[k])), w, lows[k]), 1);
        OK(kiln_grad(kiln_sum(kiln_square(spelled)), p, 2, want));
        same(y, spelled, "products");
        same(got[0], want[0], "gradient");
        same(got[1], want[1], "gradient");
    }
}

/* Every public function that makes a product goes on to work, with the dtype and shape that it has without. */
API_TEST(mode, autocast_under_what_is_made_of_products)
{
    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(2, 4, 8), -1, 1), *w = kiln_uniform(KILN_F32, KILN_SHAPE(8, 8), -1, 1),
                *b = kiln_uniform(KILN_F32, KILN_SHAPE(8), -1, 1), *image = kiln_uniform(KILN_F32, KILN_SHAPE(1, 2, 6, 6), -1, 1),
                *kernel = kiln_uniform(KILN_F32, KILN_SHAPE(3, 2, 3, 3), -1, 1), *q = kiln_uniform(KILN_F32, KILN_SHAPE(1, 5, 2, 4), -1, 1),
                *made[2][6];
    for (int low = 0; low < 2; low++) {
        kiln_mode *mode = low ? kiln_autocast_push(KILN_BF16) : NULL;
        made[low][0] = kiln_linear(x, w, b);
        made[low][1] = kiln_conv(image, kernel, NULL);
        made[low][2] = kiln_attention(q, q, q, NULL);
        made[low][3] = kiln_einsum("bij,jk->bki", x, w);
        made[low][4] = kiln_layer_norm(kiln_matmul(x, w), b, b, 1e-5);
        made[low][5] = kiln_outer(b, b);
        OK(kiln_mode_pop(mode));
    }
    for (int k = 0; k < 6; k++) {
        cr_assert(made[1][k] && kiln_dtype_of(made[1][k]) == KILN_F32 && kiln_rank(made[1][k]) == kiln_rank(made[0][k]), "%d: %s", k,
                  kiln_error_message());
        kiln_tensor *away = kiln_max(kiln_abs(kiln_sub(made[0][k], made[1][k])));
        double most;
        OK(kiln_item(away, &most));
        cr_expect(most < 0.15 && (most > 0) == (k != 5), "%d: %g", k, most);
    }
}

/* --- the log ---------------------------------------------------------------------------------------------------------------- */

static char said[1 << 14];
static kiln_log_buffer log_text = {said, sizeof said, 0};

Test(mode, logs_ops)
{
    kiln_set_log_sink(kiln_log_into, &log_text);
    kiln_mode *mode = kiln_log_ops_push();
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6);
    (void)kiln_matmul(x, kiln_transpose(x));
    OK(kiln_mode_pop(mode));
    kiln_set_log_sink(NULL, NULL);
    cr_expect(strstr(said, "%0 = permute f32[2,3] -> f32[3,2] kiln_transpose test_mode.c:"), "%s", said);
    cr_expect(strstr(said, "%1 = matmul f32[2,3] f32[3,2] -> f32[2,2] kiln_matmul test_mode.c:"), "%s", said);
    cr_expect(strstr(said, "2 ops were recorded\n"), "%s", said);
}

static int computes(void *unused)
{
    (void)unused;
    kiln_tensor *x = F32(KILN_SHAPE(2), 1, 2);
    return (int)kiln_eval(kiln_exp(x));
}

/* KILN_LOG=ops, as it is set when a thread begins. */
Test(mode, logs_ops_of_a_thread)
{
    thrd_t thread;
    int status;
    set_option("log", "ops");
    kiln_set_log_sink(kiln_log_into, &log_text);
    cr_assert(thrd_create(&thread, computes, NULL) == thrd_success && thrd_join(thread, &status) == thrd_success && status == KILN_OK);
    kiln_set_log_sink(NULL, NULL);
    cr_expect(strstr(said, "%0 = exp f32[2] -> f32[2] kiln_exp test_mode.c:"), "%s", said);
    cr_expect(strstr(said, "1 ops were recorded\n"), "%s", said);
}

/* --- random programs: a layer that only hands on changes no bit, no compile, no gradient ---------------------------------------- */

static kiln_tensor *hand_on(const kiln_op_call *call, void *user)
{
    ++*(int *)user;
    return kiln_mode_next(call, call->in);
}

static kiln_tensor *some_op(unsigned which, kiln_tensor *a, kiln_tensor *b)
{
    switch (which % 12) {
    case 0: return kiln_sin(a);
    case 1: return kiln_mul(a, b);
    case 2: return kiln_matmul(a, kiln_matmul(kiln_transpose(b), a));
    case 3: return kiln_softmax(b, 0);
    case 4: return kiln_sub(a, kiln_mean_axes(b, KILN_AXES(1), true));
    case 5: return kiln_concat((kiln_tensor *[]){kiln_slice_axis(a, 1, 1, 3, 1), kiln_slice_axis(b, 1, 0, 4, 2)}, 2, 1);
    case 6: return kiln_reshape(kiln_transpose(kiln_reshape(a, KILN_SHAPE(4, 3))), KILN_SHAPE(3, 4));
    case 7: return kiln_sort(a, 1, false);
    case 8: return kiln_where(kiln_gt(a, b), a, kiln_scalar(0.5));
    case 9: return kiln_cumsum(kiln_flip(a, KILN_AXES(0)), 1);
    case 10: return kiln_dropout(a, 0.25);
    default: return kiln_layer_norm(a, kiln_slice_axis(b, 0, 0, 1, 1), kiln_scalar(0.5), 1e-3);
    }
}

Test(mode, handing_on_changes_nothing, .timeout = HANGS_AFTER(60))
{
    for (unsigned seed = 1; seed <= 40; seed++) {
        float g[2][12];
        int64_t compiles = 0;
        int n = 0;
        for (int layered = 0; layered < 2; layered++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_mode *mode = layered ? kiln_mode_push(hand_on, NULL, &n) : NULL;
            kiln_seed(seed);
            kiln_tensor *x = kiln_param(kiln_uniform(KILN_F32, KILN_SHAPE(3, 4), -1, 1)), *v[9] = {x}, *grad;
            OK(kiln_eval(x));
            for (unsigned i = 1, z = seed * 2654435761u; i < 9; i++, z = z * 1664525u + 1013904223u)
                cr_assert((v[i] = some_op(z >> 20, v[i - 1], v[(z >> 12) % i])) != NULL, "%s", kiln_error_message());
            OK(kiln_grad(kiln_sum(kiln_mul(v[8], v[7])), &x, 1, &grad));
            OK(kiln_read(grad, KILN_F32, g[layered], sizeof g[layered]));
            kiln_stats stats = stats_now();
            if (layered)
                cr_expect_eq(stats.compiles, compiles, "program %u is another one", seed);
            compiles = stats.compiles;
            OK(kiln_mode_pop(mode));
            kiln_scope_end(scope);
        }
        cr_expect(n > 8 && memcmp(g[0], g[1], sizeof g[0]) == 0, "program %u, %d ops", seed, n);
    }
}

/* --- the finite check --------------------------------------------------------------------------------------------------------- */

static kiln_status computed(kiln_tensor *x)
{
    kiln_status status = kiln_eval(x);
    return status;
}

API_TEST(mode, finite_check_names_the_first_op)
{
    char mode[16], text[256];
    OK(kiln_get_option("mode", mode, sizeof mode));
    bool eager = strcmp(mode, "eager") == 0; /* where each op is a sync point: the error is kept */
    kiln_tensor *x = F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 0.5f, -1), *y, *z;
    kiln_mode *check = kiln_finite_check_push();
    cr_assert(check, "%s", kiln_error_message());
    y = kiln_sum(kiln_mul(kiln_exp(x), 2.0));
    OK(kiln_eval(y));
    int line = __LINE__ + 1;
    z = kiln_log(kiln_transpose(x));
    y = eager ? NULL : kiln_mean(kiln_mul(z, 2.0)); /* what comes of it is not its fault */
    kiln_status status = eager ? kiln_error_status() : computed(y);
    snprintf(text, sizeof text, "kiln_log (test_mode.c:%d) made a NaN of finite operands, first at [2,1]", line);
    fails_with(status, KILN_INVALID, text);
    if (eager) {
        expect_null(z);
    } else { /* the values are there */
        EXPECT(z, KILN_F32, KILN_SHAPE(3, 2), 1e-6, 0, log(4), log(2), log(0.5), log(3), NAN);
        y = kiln_div(kiln_exp(x), kiln_sub(x, x));
        fails_with(computed(y), KILN_INVALID, "made an infinity of finite operands, first at [0,0]");
        kiln_tensor *mask = kiln_full(KILN_F32, KILN_SHAPE(3), -INFINITY), *few = kiln_where(kiln_gt(x, 1.5), x, mask);
        OK(kiln_eval(kiln_softmax(few, 1))); /* an infinity that was asked for */
        kiln_tensor *holes = F32(KILN_SHAPE(2), NAN, 1);
        OK(kiln_eval(kiln_add(holes, holes)));
    }
    OK(kiln_mode_pop(check));
    kiln_clear_error();
    OK(kiln_eval(kiln_log(kiln_sub(x, 5.0))));
}

/* Of backward ops, too. */
API_TEST(mode, finite_check_looks_at_gradients)
{
    char mode[16];
    OK(kiln_get_option("mode", mode, sizeof mode));
    const bool eager = strcmp(mode, "eager") == 0; /* kiln_grad itself is what fails there */
    kiln_tensor *x = kiln_param(F32(KILN_SHAPE(3), 1, 0, 4)), *g;
    kiln_mode *check = kiln_finite_check_push();
    kiln_status status = kiln_grad(kiln_sum(kiln_sqrt(x)), &x, 1, &g);
    fails_with(eager ? status : computed(g), KILN_INVALID, "gradient of kiln_sqrt (test_mode.c:");
    if (!eager)
        EXPECT(g, KILN_F32, KILN_SHAPE(3), 1e-6, 0.5, INFINITY, 0.25);
    OK(kiln_mode_pop(check));
}

static void pushes_a_check(kiln_tensor **in, kiln_tensor **out, void *user)
{
    if (++*(int *)user == 1) { /* traced */
        expect_null(kiln_finite_check_push());
        fails_with(kiln_error_status(), KILN_INVALID, "push it around the call");
    }
    out[0] = kiln_log(in[0]);
}

/* It looks into functions that are called under it, adds no kernel to a chain, and keeps nothing. */
Test(mode, finite_check_fuses)
{
    kiln_stats stats;
    int64_t kernels[2], live = 0;
    int runs = 0;
    kiln_tensor *x = F32(KILN_SHAPE(4), 1, 2, 3, -4), *y;
    kiln_function *f = kiln_function_new(pushes_a_check, 1, 1, &runs);
    OK(kiln_function_call(f, &x, &y));
    kiln_mode *check = kiln_finite_check_push();
    OK(kiln_function_call(f, &x, &y));
    fails_with(computed(y), KILN_INVALID, "kiln_log (test_mode.c:");
    OK(kiln_mode_pop(check));
    cr_expect_eq(runs, 2);
    kiln_function_free(f);
    for (int i = 0; i < 6; i++) {
        kiln_scope *scope = kiln_scope_begin();
        check = i & 1 ? kiln_finite_check_push() : NULL;
        kiln_tensor *z = kiln_sin(kiln_mul(kiln_exp(kiln_full(KILN_F32, KILN_SHAPE(1 << 16), 0.5)), 3.0));
        OK(kiln_eval(z));
        kiln_call_report report = {.size = sizeof report};
        OK(kiln_last_call(&report));
        kernels[i & 1] = report.kernels;
        OK(kiln_mode_pop(check));
        kiln_scope_end(scope);
        kiln_get_stats(&stats);
        cr_expect(i < 4 || stats.live_bytes == live, "%d bytes, then %d", (int)live, (int)stats.live_bytes);
        live = i == 3 ? stats.live_bytes : live;
    }
    cr_expect(kernels[1] <= kernels[0] + 1, "%d kernels, %d with the check", (int)kernels[0], (int)kernels[1]);
}

/* What fails among what nobody asked for is told to who asks for it, once, and stands in nobody's way. */
API_TEST(mode, finite_check_fails_for_nobody_else)
{
    char mode[16];
    double value;
    OK(kiln_get_option("mode", mode, sizeof mode));
    if (strcmp(mode, "eager") == 0)
        return; /* each op is computed there, and fails, where it is recorded */
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3), *bad = I32(KILN_SHAPE(1), 7);
    OK(kiln_eval_many((kiln_tensor *[]){x, bad}, 2));
    kiln_mode *check = kiln_finite_check_push();
    kiln_tensor *taken = kiln_take(x, bad, 0), *y = kiln_sum(kiln_exp(x));
    for (int i = 0; i < 2; i++)
        OK(kiln_item(kiln_add(y, (double)i), &value));
    fails_with(kiln_item(kiln_sum(taken), &value), KILN_BAD_INDEX, "kiln_take");
    OK(kiln_item(kiln_sum(kiln_sin(x)), &value));
    OK(kiln_mode_pop(check));
}

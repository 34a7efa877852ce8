/* Gradients, and what is assigned from them, are computed with the value that a step looks at in its middle (runtime/gradient/group.h). */
#include "api.h"

enum { ROWS = 32, IN = 48, HIDDEN = 64, CLASSES = 10 };

typedef struct Net {
    kiln_tensor *x, *labels, *w1, *w2;
} Net;

static kiln_tensor *computed(kiln_tensor *x)
{
    cr_assert_eq(kiln_eval(x), KILN_OK, "%s", kiln_error_message());
    return x;
}

static Net net_new(int64_t last_label)
{
    int64_t label[ROWS];
    for (int i = 0; i < ROWS; i++)
        label[i] = i % CLASSES;
    label[ROWS - 1] = last_label;
    kiln_seed(5);
    return (Net){.x = computed(kiln_normal(KILN_F32, KILN_SHAPE(ROWS, IN), 0, 1)),
                 .labels = kiln_from(KILN_I64, KILN_SHAPE(ROWS), label),
                 .w1 = kiln_param(computed(kiln_normal(KILN_F32, KILN_SHAPE(IN, HIDDEN), 0, 0.2))),
                 .w2 = kiln_param(computed(kiln_normal(KILN_F32, KILN_SHAPE(HIDDEN, CLASSES), 0, 0.2)))};
}

static kiln_tensor *loss_of(const Net *net)
{
    kiln_tensor *h = kiln_tanh(kiln_matmul(net->x, net->w1));
    return kiln_mean(kiln_cross_entropy(kiln_matmul(h, net->w2), net->labels));
}

static void sgd(kiln_tensor *w, kiln_tensor *g)
{
    cr_assert_eq(kiln_assign(w, kiln_sub(w, kiln_mul(kiln_scalar(0.1), g))), KILN_OK, "%s", kiln_error_message());
}

/* The bits of parameters and losses after some steps; `middle`: the loss is read before what was assigned is asked for. */
typedef struct Trained {
    double loss[3];
    float w1[IN * HIDDEN], w2[HIDDEN * CLASSES];
    long long evals, bytes;
} Trained;

static void train(Trained *t, bool middle)
{
    kiln_scope *scope = kiln_scope_begin();
    Net net = net_new(0);
    kiln_reset_stats();
    for (int step = 0; step < 3; step++) {
        kiln_scope *inner = kiln_scope_begin();
        kiln_tensor *loss = loss_of(&net), *p[] = {net.w1, net.w2}, *g[2];
        cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK, "%s", kiln_error_message());
        sgd(net.w1, g[0]);
        sgd(net.w2, g[1]);
        kiln_tensor *all[] = {loss, net.w1, net.w2};
        if (!middle)
            cr_assert_eq(kiln_eval_many(all, 3), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_item(loss, &t->loss[step]), KILN_OK, "%s", kiln_error_message());
        cr_assert_eq(kiln_eval_many(&all[1], 2), KILN_OK, "%s", kiln_error_message());
        kiln_scope_end(inner);
    }
    kiln_stats stats = stats_now();
    t->evals = (long long)stats.evals;
    t->bytes = (long long)stats.bytes_moved;
    cr_assert_eq(kiln_read(net.w1, KILN_F32, t->w1, sizeof t->w1), KILN_OK);
    cr_assert_eq(kiln_read(net.w2, KILN_F32, t->w2, sizeof t->w2), KILN_OK);
    kiln_scope_end(scope);
}

/* The loss is read in the middle of each step: the same numbers, the same traffic, one program for each step. */
Test(gradient_group, loss_read_in_the_middle)
{
    static Trained together, middle, apart;
    set_option("cache", "off");
    train(&together, false);
    train(&middle, true);
    set_option("joint", "0");
    train(&apart, true);
    cr_expect_eq(together.evals, 3);
    cr_expect_eq(middle.evals, 3, "%lld", middle.evals);
    cr_expect_eq(apart.evals, 6, "%lld", apart.evals);
    cr_expect_eq(middle.bytes, together.bytes, "%lld, not %lld", middle.bytes, together.bytes);
    cr_expect(apart.bytes > middle.bytes);
    cr_expect(memcmp(together.loss, middle.loss, sizeof together.loss) == 0);
    cr_expect(memcmp(together.w1, middle.w1, sizeof together.w1) == 0);
    cr_expect(memcmp(together.w2, middle.w2, sizeof together.w2) == 0);
}

/* In each mode: what has its value after the loss was read. */
API_TEST(gradient_group, what_is_computed)
{
    char mode[16];
    cr_assert_eq(kiln_get_option("mode", mode, sizeof mode), KILN_OK);
    bool lazy = strcmp(mode, "eager") != 0;
    Net net = net_new(0);
    kiln_tensor *loss = loss_of(&net), *p[] = {net.w1, net.w2}, *g[2], *other;
    double value;
    cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK, "%s", kiln_error_message());
    other = kiln_mul(g[1], kiln_scalar(2));
    cr_assert_eq(kiln_item(loss, &value), KILN_OK, "%s", kiln_error_message());
    cr_expect(kiln_is_evaluated(g[0]) && kiln_is_evaluated(g[1]), "nothing is assigned: the gradients");
    cr_expect_eq(kiln_is_evaluated(other), !lazy, "what nobody asked for and nobody assigned");

    loss = loss_of(&net);
    cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK, "%s", kiln_error_message());
    kiln_tensor *before = kiln_mul(net.w1, kiln_scalar(3));
    sgd(net.w1, g[0]);
    cr_assert_eq(kiln_item(loss, &value), KILN_OK, "%s", kiln_error_message());
    cr_expect(kiln_is_evaluated(net.w1), "it was assigned");
    cr_expect_eq(kiln_is_evaluated(g[1]), !lazy, "it is not assigned, and another of its call is used by what is");
    cr_expect_eq(kiln_is_evaluated(before), !lazy);
}

/* Values that share no work with the gradients bring nothing along; nor does what nobody holds. */
Test(gradient_group, what_is_not_computed)
{
    set_option("cache", "off");
    Net net = net_new(0);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *loss = loss_of(&net), *p[] = {net.w1, net.w2}, *g[2];
    double value;
    cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK);
    cr_assert_eq(kiln_item(kiln_sum(net.w1), &value), KILN_OK);
    cr_expect(!kiln_is_evaluated(g[0]), "a sum of the weights is no part of a step");
    loss = kiln_keep(loss);
    kiln_scope_end(scope); /* g goes */
    kiln_call_report last = {.size = sizeof last};
    cr_assert_eq(kiln_item(loss, &value), KILN_OK);
    cr_assert_eq(kiln_last_call(&last), KILN_OK);
    cr_expect((double)last.flops < 2.5 * ROWS * (IN * HIDDEN + HIDDEN * CLASSES), "the forward pass alone: %g", (double)last.flops);
}

/* A handle that was assigned twice means the last value; one that was let go of holds no memory. */
Test(gradient_group, nothing_is_held)
{
    set_option("cache", "off");
    Net net = net_new(0);
    kiln_stats after;
    kiln_stats before = stats_now();
    for (int i = 0; i < 3; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *loss = loss_of(&net), *p[] = {net.w1, net.w2}, *g[2];
        kiln_tensor *sum = kiln_retain(computed(kiln_zeros(KILN_F32, KILN_SHAPE(IN, HIDDEN))));
        cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK);
        cr_assert_eq(kiln_assign(sum, kiln_add(sum, g[0])), KILN_OK);
        cr_assert_eq(kiln_assign(sum, kiln_add(sum, g[0])), KILN_OK);
        kiln_scope_end(scope);
        if (i == 1) {
            double value;
            kiln_scope *other = kiln_scope_begin();
            cr_assert_eq(kiln_item(kiln_sum(sum), &value), KILN_OK);
            kiln_scope_end(other);
        }
        kiln_release(sum);
        kiln_get_stats(&after);
        cr_expect_eq(after.live_bytes, before.live_bytes, "%d: %lld bytes more", i, (long long)(after.live_bytes - before.live_bytes));
    }
}

/* An update that fails (a bad index in what is assigned) is no failure of the loss, which is computed alone. */
API_TEST(gradient_group, failing_company)
{
    Net net = net_new(0);
    kiln_tensor *index = kiln_from(KILN_I64, KILN_SHAPE(2), (int64_t[]){0, 99});
    kiln_tensor *loss = loss_of(&net), *p[] = {net.w1, net.w2}, *g[2];
    kiln_tensor *row = kiln_zeros(KILN_F32, KILN_SHAPE(2, CLASSES));
    double value = 0, again = 0;
    cr_assert_eq(kiln_item(loss_of(&net), &again), KILN_OK, "%s", kiln_error_message());
    cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK, "%s", kiln_error_message());
    kiln_tensor *bad = kiln_take(g[1], index, 0);
    if (!bad) { /* eager: it failed where it was recorded */
        kiln_clear_error();
        return;
    }
    cr_assert_eq(kiln_assign(row, bad), KILN_OK, "%s", kiln_error_message());
    cr_expect_eq(kiln_item(loss, &value), KILN_OK, "%s", kiln_error_message());
    cr_expect_eq(value, again);
    float rows[2 * CLASSES];
    cr_expect_eq(kiln_read(row, KILN_F32, rows, sizeof rows), KILN_BAD_INDEX, "the mistake is told where its result is asked for");
}

/* A gradient that was computed beside a printed loss has no history: the error says why, and what to do. */
Test(gradient_group, gradient_of_a_computed_gradient)
{
    set_option("cache", "off");
    Net net = net_new(0);
    for (int joint = 1; joint >= 0; joint--) {
        kiln_tensor *loss = loss_of(&net), *p[] = {net.w1}, *g, *second;
        double value;
        set_option("joint", joint ? "1" : "0");
        cr_assert_eq(kiln_grad(loss, p, 1, &g), KILN_OK);
        cr_assert_eq(kiln_item(loss, &value), KILN_OK);
        kiln_status status = kiln_grad(kiln_sum(kiln_square(g)), p, 1, &second);
        cr_expect_eq(status, joint ? KILN_INVALID : KILN_OK);
        if (joint)
            cr_expect(strstr(kiln_error_message(), "was computed by kiln_item (test_gradient_group.c:") &&
                          strstr(kiln_error_message(), "together with what that asked for (not with KILN_JOINT=0)"),
                      "%s", kiln_error_message());
        kiln_clear_error();
    }
}

static char said[1 << 14];
static kiln_log_buffer log_text = {said, sizeof said, 0};

Test(gradient_group, told)
{
    set_option("cache", "off");
    kiln_set_log_sink(kiln_log_into, &log_text);
    set_option("log", "gradient");
    Net net = net_new(0);
    kiln_tensor *loss = loss_of(&net), *p[] = {net.w1, net.w2}, *g[2];
    double value;
    cr_assert_eq(kiln_grad(loss, p, 2, g), KILN_OK);
    cr_assert_eq(kiln_item(loss, &value), KILN_OK);
    cr_expect(strstr(said, "2 more values of a gradient or an update"), "%s", said);
}

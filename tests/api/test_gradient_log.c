/* KILN_LOG=gradient, and what kiln_explain says of a program with a gradient. */
#include "api.h"

static char said[1 << 16];
static kiln_log_buffer log_text = {said, sizeof said, 0};

#define SAYS(text) cr_expect(strstr(said, text), "'%s' is not in:\n%s", text, said)

static kiln_tensor *made(kiln_shape shape)
{
    kiln_tensor *x = kiln_uniform(KILN_F32, shape, -1, 1);
    cr_assert_eq(kiln_eval(x), KILN_OK, "%s", kiln_error_message());
    return x;
}

Test(gradient_log, what_is_read_and_what_is_computed_again)
{
    set_option("cache", "off");
    kiln_tensor *x = made(KILN_SHAPE(64, 128)), *p[3], *g[3], *unused = kiln_param(made(KILN_SHAPE(2)));
    p[0] = kiln_param(made(KILN_SHAPE(128, 128)));
    p[1] = unused;
    p[2] = kiln_param(made(KILN_SHAPE(128, 32)));
    kiln_set_log_sink(kiln_log_into, &log_text);
    set_option("log", "+gradient");
    kiln_tensor *h = kiln_tanh(kiln_matmul(x, p[0]));
    kiln_tensor *loss = kiln_sum(kiln_square(kiln_matmul(kiln_mul(h, h), p[2])));
    cr_assert_eq(kiln_grad(loss, p, 3, g), KILN_OK, "%s", kiln_error_message());
    SAYS("kiln_grad (test_gradient_log.c:");
    SAYS(" forward, ");
    SAYS("3 params, 1 disconnected: params[1] (test_gradient_log.c:");
    char text[4096];
    kiln_tensor *all[] = {g[0], g[2], loss};
    cr_assert_eq(kiln_explain(g[0], text, sizeof text, NULL), KILN_OK, "%s", kiln_error_message());
    cr_expect(strstr(text, "read of the forward pass: "), "%s", text);
    said[log_text.needed = 0] = 0;
    cr_assert_eq(kiln_eval_many(all, 3), KILN_OK, "%s", kiln_error_message());
    SAYS("read of the forward pass: 3 values, 72.0 KB (most: ");
    SAYS("matmul f32[64,32] 8.0 KB test_gradient_log.c:");
    SAYS("f32[64,128] 32.0 KB test_gradient_log.c:");
    SAYS("; computed again: ");
    SAYS("; peak ");
    SAYS("  read %");
}

/* Without a gradient there is nothing to say. */
Test(gradient_log, silent_without_a_gradient)
{
    set_option("cache", "off");
    kiln_set_log_sink(kiln_log_into, &log_text);
    set_option("log", "gradient");
    kiln_tensor *x = made(KILN_SHAPE(64, 128));
    cr_assert_eq(kiln_eval(kiln_sum(kiln_tanh(x))), KILN_OK);
    cr_expect_str_empty(said, "%s", said);
}

/* use ROWS COLS [gradient | many | loop]: a program that computes relu(sin(x) * cos(x)) of so many elements, or also its gradient, or a graph of
 * many kernels, or loops in a loop, and prints the sum; for tests of the real cache. */
#include <kiln.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 300 };

/* With KILN_DYNAMIC=never each is a kernel of its own. */
static kiln_tensor *many(kiln_tensor *x)
{
    kiln_tensor *total = kiln_full(KILN_F32, KILN_SHAPE(1), 0);
    for (int i = 0; i < MANY; i++) {
        kiln_tensor *part = kiln_slice_axis(x, 0, 0, 8 + i, 1);
        total = kiln_add(total, kiln_max(kiln_sin(kiln_cumsum(part, 0))));
    }
    return total;
}

static kiln_tensor *large(kiln_tensor **state, void *user)
{
    (void)user;
    return kiln_gt(kiln_max(state[0]), 2);
}

static void halve(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], 0.5);
}

static void step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    kiln_tensor *state[1] = {kiln_add(carry[0], x[0])};
    (void)i, (void)y;
    if (kiln_while(large, halve, 1, state, 100, state, user) == KILN_OK)
        carry_out[0] = state[0];
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    int64_t rows = atoll(argv[1]), cols = atoll(argv[2]);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_reshape(kiln_arange(KILN_F32, 0, (double)(rows * cols), 1), KILN_SHAPE(rows, cols));
    kiln_status status = kiln_eval(x); /* an input of the graph that follows */
    double total = 0;
    if (status == KILN_OK && argc > 3 && strcmp(argv[3], "many") == 0) {
        status = kiln_item(many(kiln_reshape(x, KILN_SHAPE(rows * cols))), &total);
    } else if (status == KILN_OK && argc > 3 && strcmp(argv[3], "loop") == 0) {
        kiln_tensor *carry = kiln_zeros(KILN_F32, KILN_SHAPE(cols));
        status = kiln_scan(step, -1, 0, 1, &carry, &carry, 1, &x, 0, NULL, NULL);
        if (status == KILN_OK)
            status = kiln_item(kiln_sum(carry), &total);
    } else if (status == KILN_OK && argc > 3) {
        kiln_tensor *p = kiln_param(x), *grad = NULL, *y = kiln_tanh(kiln_matmul(kiln_sin(p), kiln_transpose(p)));
        status = kiln_grad(kiln_sum(kiln_mul(y, y)), &p, 1, &grad);
        if (status == KILN_OK)
            status = kiln_item(kiln_sum(grad), &total);
    } else if (status == KILN_OK)
        status = kiln_item(kiln_sum(kiln_relu(kiln_mul(kiln_sin(x), kiln_cos(x)))), &total);
    if (status != KILN_OK)
        fprintf(stderr, "%s\n", kiln_error_message());
    else
        printf("%.3f\n", total);
    kiln_scope_end(scope);
    return status != KILN_OK;
}

/* use ROWS COLS [gradient | many]: a program that computes relu(sin(x) * cos(x)) of so many elements, or also its gradient, or a graph of
 * many kernels, and prints the sum; for tests of the real cache. */
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

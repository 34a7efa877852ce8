/* The program of the README: two random matrices, a chain of six functions, one kernel. */
#include <kiln.h>
#include <stdio.h>

int main(void)
{
    kiln_scope *scope = kiln_scope_begin(); /* owns every tensor made inside */

    kiln_tensor *x = kiln_uniform(KILN_F32, KILN_SHAPE(4096, 4096), -1, 1);
    kiln_tensor *y = kiln_uniform(KILN_F32, KILN_SHAPE(4096, 4096), -1, 1);

    kiln_tensor *a = kiln_sin(x), *b = kiln_cos(y);
    kiln_tensor *d = kiln_add(kiln_mul(a, b), x);
    kiln_tensor *e = kiln_relu(kiln_mul(d, y)); /* so far nothing has run */

    double total;
    kiln_status status = kiln_item(kiln_sum(e), &total); /* guards, cache, one kernel */
    if (status != KILN_OK)
        fprintf(stderr, "%s\n", kiln_error_message());
    else
        printf("%f\n", total);

    kiln_scope_end(scope);
    return status != KILN_OK;
}

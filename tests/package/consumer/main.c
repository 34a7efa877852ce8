/* A program outside the tree: prints 2x + 1 for x = 1, 2, 3, or with an argument the version. */
#include <kiln.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) {
        puts(kiln_version());
        return 0;
    }
    const float data[] = {1, 2, 3};
    float y[3] = {0, 0, 0};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3), data);
    kiln_status status = kiln_read(kiln_add(kiln_mul(x, kiln_scalar(2)), kiln_scalar(1)), KILN_F32, y, sizeof y);
    if (status != KILN_OK)
        fprintf(stderr, "%s\n", kiln_error_message());
    else
        printf("%g %g %g\n", (double)y[0], (double)y[1], (double)y[2]);
    kiln_scope_end(scope);
    return status != KILN_OK;
}

/*
 * standardize in.npy out.npy: shifts and scales each column of a matrix to zero mean and unit variance.
 *
 * in.npy holds a matrix of numbers; ints are computed in f32, f32 and f64 in themselves. The variance is that of the
 * population (divided by the number of rows). A column of one value only becomes zeros. out.npy may be in.npy.
 * Ends with 0, or with 1 and one line on stderr, or with 2 when called wrongly.
 */
#include <kiln.h>
#include <stdbool.h>
#include <stdio.h>

/* One line: what we were doing, kiln's message, and what would help if it is the file's fault. */
static int failed(const char *what, const char *advice)
{
    kiln_status status = kiln_error_status();
    bool file = status == KILN_IO || status == KILN_BAD_FORMAT;
    fprintf(stderr, "standardize: %s: %s%s%s\n", what, kiln_error_message(), file ? "; " : "", file ? advice : "");
    return 1;
}

static int standardize(const char *in_path, const char *out_path)
{
    kiln_tensor *x = kiln_load_npy(in_path);
    if (!x)
        return failed("cannot read the input", "give a .npy file, as numpy.save writes them");
    if (kiln_rank(x) != 2) {
        fprintf(stderr, "standardize: %s: need a matrix (rank 2), got rank %d; reshape it to rows and columns\n", in_path, kiln_rank(x));
        return 1;
    }
    if (kiln_dtype_of(x) == KILN_BOOL) {
        fprintf(stderr, "standardize: %s: need numbers, got bool; save it as ints\n", in_path);
        return 1;
    }

    kiln_tensor *mean = kiln_mean_axes(x, KILN_AXES(0), true);
    kiln_tensor *deviation = kiln_std_axes(x, KILN_AXES(0), 0, true);
    kiln_tensor *constant = kiln_eq(deviation, kiln_scalar(0));
    kiln_tensor *scale = kiln_where(constant, kiln_ones_like(deviation), deviation);
    kiln_tensor *result = kiln_div(kiln_sub(x, mean), scale);

    if (kiln_save_npy(result, out_path) != KILN_OK)
        return failed("cannot write the output", "name a file in a directory that you can write to");
    printf("%lld rows, %lld columns, %s\n", (long long)kiln_dim(x, 0), (long long)kiln_dim(x, 1), kiln_dtype_name(kiln_dtype_of(result)));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: standardize in.npy out.npy\n");
        return 2;
    }
    kiln_scope *scope = kiln_scope_begin();
    int status = standardize(argv[1], argv[2]);
    kiln_scope_end(scope);
    return status;
}

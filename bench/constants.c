/*
 * Products with weights that are marked as constant beside the same with weights that are not: what kiln_mark_constant saves.
 *
 *     constants [K]
 *
 * x[m, K] times weights of K x K (1024): as they lie; lying transposed, as PyTorch's linear layers have them; of 8 bits with a scale for
 * each column; with another operation folded in. Then convolutions by 3 x 3 of one image. Both sides in turns in one process, the least of
 * each; on one thread unless KILN_THREADS says otherwise.
 */
#include "bench/timing.h"
#include "kiln.h"

#include <stdio.h>
#include <stdlib.h>

enum { PLAIN, TURNED, OF_8_BITS, SCALE, TAPS, WEIGHTS, ROUNDS = 15 };

static kiln_tensor *weights[2][WEIGHTS]; /* as they are; constant */

static kiln_tensor *plain(kiln_tensor *const *w) { return w[PLAIN]; }
static kiln_tensor *turned(kiln_tensor *const *w) { return kiln_transpose(w[TURNED]); }
static kiln_tensor *dequantised(kiln_tensor *const *w) { return kiln_mul(kiln_cast(w[OF_8_BITS], KILN_F32), w[SCALE]); }
static kiln_tensor *folded(kiln_tensor *const *w) { return kiln_mul(w[PLAIN], kiln_exp(w[SCALE])); }

typedef struct Way {
    const char *name;
    kiln_tensor *(*make)(kiln_tensor *const *w); /* NULL: a convolution by w[TAPS] */
} Way;
static const Way ways[] = {{"as they lie", plain}, {"transposed", turned}, {"of 8 bits", dequantised}, {"folded", folded}};

typedef struct Side {
    const Way *way;
    kiln_tensor *const *weights;
} Side;

static void must(kiln_status status)
{
    if (status == KILN_OK)
        return;
    fprintf(stderr, "constants: %s\n", kiln_error_message());
    exit(1);
}

static void product(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Side *side = user;
    const kiln_conv_options same = {.same = true};
    out[0] = side->way->make ? kiln_matmul(in[0], side->way->make(side->weights)) : kiln_conv(in[0], side->weights[TAPS], &same);
}

static void make_taps(int64_t channels)
{
    float *data = new_floats((size_t)(channels * channels * 9), -1, 1);
    for (int constant = 0; constant < 2; constant++) {
        kiln_tensor **w = &weights[constant][TAPS];
        kiln_release(*w);
        *w = kiln_retain(kiln_from(KILN_F32, KILN_SHAPE(channels, channels, 3, 3), data));
        if (constant)
            must(kiln_mark_constant(*w));
    }
    free(data);
}

static void make_weights(int64_t k)
{
    float *data = new_floats((size_t)(k * k), -1, 1);
    int8_t *bytes = malloc((size_t)(k * k));
    for (int64_t i = 0; i < k * k; i++)
        bytes[i] = (int8_t)(i * 31 % 255 - 127);
    for (int constant = 0; constant < 2; constant++) {
        kiln_tensor **w = weights[constant];
        w[PLAIN] = kiln_retain(kiln_from(KILN_F32, KILN_SHAPE(k, k), data));
        w[TURNED] = kiln_retain(kiln_from(KILN_F32, KILN_SHAPE(k, k), data));
        w[OF_8_BITS] = kiln_retain(kiln_from(KILN_I8, KILN_SHAPE(k, k), bytes));
        w[SCALE] = kiln_retain(kiln_from(KILN_F32, KILN_SHAPE(k), data));
        for (int i = 0; i < TAPS && constant; i++)
            must(kiln_mark_constant(w[i]));
    }
    free(bytes);
    free(data);
}

static double once(kiln_function *f, kiln_tensor *x)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *y;
    double start = now_seconds();
    must(kiln_function_call(f, &x, &y));
    must(kiln_eval(y));
    double took = now_seconds() - start;
    kiln_scope_end(scope);
    return took;
}

static void measure(const Way *way, kiln_shape shape, const char *of)
{
    double least[2] = {1e9, 1e9};
    kiln_function *f[2];
    Side side[2];
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_uniform(KILN_F32, shape, -1, 1);
    must(kiln_eval(x));
    for (int c = 0; c < 2; c++) {
        side[c] = (Side){way, weights[c]};
        f[c] = kiln_function_new(product, 1, 1, &side[c]);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int c = 0; c < 2; c++) {
            double took = once(f[c], x);
            least[c] = round > 2 && took < least[c] ? took : least[c];
        }
    printf("%-12s %5lld %s %10.4f ms %10.4f constant %8.2f\n", way->name, (long long)shape.dim[way->make ? 0 : 1], of, 1e3 * least[0],
           1e3 * least[1], least[0] / least[1]);
    kiln_function_free(f[0]);
    kiln_function_free(f[1]);
    kiln_scope_end(scope);
}

int main(int argc, char **argv)
{
    const int64_t k = argc > 1 ? strtoll(argv[1], NULL, 10) : 1024;
    static const int64_t rows[] = {1, 4, 16, 64, 256};
    if (k < 1 || k > 1 << 15) {
        fprintf(stderr, "usage: constants [K], from 1 to 32768\n");
        return 2;
    }
    if (!getenv("KILN_THREADS"))
        must(kiln_set_option("threads", "1"));
    make_weights(k);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            measure(&ways[w], KILN_SHAPE(rows[i], k), "rows");
    for (int64_t channels = 64, size = 56; channels <= 256; channels *= 2, size /= 2) {
        make_taps(channels);
        measure(&(Way){"convolution", NULL}, KILN_SHAPE(1, channels, size, size), "channels");
    }
    for (int i = 0; i < 2 * WEIGHTS; i++)
        kiln_release(weights[i / WEIGHTS][i % WEIGHTS]);
    return 0;
}

/*
 * What only fusion sees: chains of elementwise functions, views and reductions, several outputs, hand-written softmax and the like, bit
 * for bit against the interpreter. And composites and reductions in every mode against references in double precision written
 * here, within bounds that follow from the order of summation (ir/orders.def).
 */
#include "tests/differential/engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* --- chains: arg[0] pattern, arg[1] which unary, arg[2] which binary --- */

typedef kiln_tensor *Unary(kiln_tensor *);
typedef kiln_tensor *Binary(kiln_tensor *, kiln_tensor *);
typedef kiln_tensor *Reduction(kiln_tensor *, kiln_axes, bool);

static Unary *const unaries[] = {kiln_neg,  kiln_abs,   kiln_tanh,    kiln_exp,    kiln_sqrt,  kiln_sign,
                                 kiln_relu, kiln_floor, kiln_sigmoid, kiln_square, kiln_log1p, kiln_sin};
static Binary *const binaries[] = {kiln_add, kiln_sub, kiln_mul, kiln_div, kiln_maximum, kiln_remainder, kiln_pow, kiln_fmod};
static Reduction *const reductions[] = {kiln_sum_axes, kiln_max_axes, kiln_mean_axes, kiln_prod_axes, kiln_min_axes};
enum { UNARIES = sizeof unaries / sizeof *unaries, BINARIES = sizeof binaries / sizeof *binaries };

static kiln_tensor *unary(const Case *c, int k, kiln_tensor *x) { return unaries[(c->arg[1] + k) % UNARIES](x); }
static kiln_tensor *binary(const Case *c, int k, kiln_tensor *a, kiln_tensor *b) { return binaries[(c->arg[2] + k) % BINARIES](a, b); }
static kiln_tensor *reduce(const Case *c, kiln_tensor *x, int axis, bool keep)
{
    return reductions[(c->arg[1] + c->arg[2]) % 5](x, KILN_AXES(axis), keep);
}

static int pattern_elementwise(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    out[0] = unary(c, 0, binary(c, 0, unary(c, 1, a), b));
    return 1;
}

static int pattern_centred(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *u = unary(c, 0, a);
    out[0] = binary(c, 0, u, reduce(c, u, -1, true));
    out[1] = kiln_sum_axes(binary(c, 1, b, reduce(c, u, 0, true)), KILN_AXES(0), false);
    return 2;
}

static int pattern_twice(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    out[0] = unary(c, 1, reduce(c, unary(c, 0, reduce(c, kiln_mul(a, b), -1, false)), 0, false));
    return 1;
}

static int pattern_softmax(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *x = unary(c, 0, a), *e = kiln_exp(kiln_sub(x, kiln_max_axes(x, KILN_AXES(-1), true)));
    out[0] = kiln_mul(kiln_div(e, kiln_sum_axes(e, KILN_AXES(-1), true)), b);
    return 1;
}

static int pattern_outputs(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    out[0] = unary(c, 0, a);
    out[1] = binary(c, 0, out[0], b);
    out[2] = reduce(c, out[1], 0, false);
    out[3] = reduce(c, out[1], -1, false);
    out[4] = kiln_sum(out[0]);
    out[5] = out[0];
    return 6;
}

static int pattern_views(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *x = kiln_transpose(unary(c, 0, a)), *y = kiln_flip(kiln_transpose(b), KILN_AXES(0));
    kiln_tensor *z = kiln_slice_axis(binary(c, 0, x, y), -1, 1, KILN_NONE, 2);
    out[0] = reduce(c, z, 0, true);
    out[1] = kiln_flatten(kiln_pad(z, 1, (kiln_padding[]){{1, 2}}, kiln_int(3)));
    out[2] = kiln_concat((kiln_tensor *[]){z, unary(c, 1, z)}, 2, -1);
    return 3;
}

static int pattern_long(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *x = a;
    int least = c->in[0].dtype == KILN_U8 ? 1 : -50;
    for (int i = 0; i < 25; i++)
        x = i % 3 ? kiln_maximum(kiln_mul(x, kiln_int(i % 2 + 1)), b) : kiln_clamp(kiln_sub(x, b), kiln_int(least), kiln_int(50));
    out[0] = unary(c, 0, x);
    return 1;
}

static int pattern_diamond(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *x = unary(c, 0, a), *y = x;
    for (int i = 0; i < 8; i++)
        y = kiln_add(y, kiln_minimum(y, b)); /* doubles the paths each time */
    out[0] = binary(c, 0, x, y);
    out[1] = reduce(c, y, -1, false);
    return 2;
}

static int pattern_best(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *x = kiln_sub(unary(c, 0, a), b), *at = kiln_argmax_axis(x, -1, true);
    out[0] = at;
    out[1] = kiln_take_along_axis(b, at, -1);
    out[2] = kiln_sub(out[1], reduce(c, x, -1, true));
    return 3;
}

static int pattern_scan(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *x = kiln_cumsum(unary(c, 0, a), -1);
    out[0] = kiln_sub(x, kiln_cumsum(b, 0));
    out[1] = kiln_sort(kiln_mul(b, b), 0, false);
    return 2;
}

static int pattern_layer(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out)
{
    kiln_tensor *h = kiln_gelu(kiln_add(kiln_matmul(a, kiln_transpose(b)), kiln_int(1)));
    out[0] = kiln_normalize(h, KILN_AXES(-1), 1e-5);
    out[1] = kiln_log_softmax(unary(c, 0, kiln_matmul(kiln_transpose(a), h)), 0);
    return 2;
}

typedef int Pattern(const Case *c, kiln_tensor *a, kiln_tensor *b, kiln_tensor **out);
typedef struct ChainRow {
    Pattern *pattern;
} ChainRow;

static int build_chain(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    const ChainRow *row = c->row;
    return row->pattern(c, in[0], in[1], out);
}

static void group_chain(const Group *g)
{
    static const kiln_shape shapes[] = {{2, {7, 13}}, {2, {33, 100}}, {2, {3, 1000}}, {2, {257, 129}}, {2, {1, 5}}, {2, {64, 64}}};
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_F16, KILN_BF16, KILN_I32, KILN_I64, KILN_U8, KILN_I16};
    int n_dtypes = sizeof dtypes / sizeof *dtypes, number = 0;
    for (int d = 0; d < n_dtypes; d++)
        for (int s = 0; s < 6; s++)
            for (int k = 0; k < (d == 0 ? 6 : 3); k++, number++) {
                Case c = {.op = g->name, .build = build_chain, .row = g->row, .n_in = 2, .arg = {number, 5 * k + number, 3 * k + number}};
                for (int i = 0; i < 2; i++)
                    c.in[i] = (Spec){dtypes[d], shapes[s], k % 3 == 2 ? VALUES_SPARSE : VALUES_PLAIN, 0};
                check(&c);
            }
}

/* --- references in double precision --- */

typedef struct Check {
    const char *name;
    kiln_dtype dtype;
    int64_t rows, columns;
    const double *x, *y; /* rows x columns each, exact in the dtype */
    kiln_tensor *(*record)(kiln_tensor *x, kiln_tensor *y);
    /* wanted[i] and bound[i] for each output; returns their number */
    int64_t (*refer)(const struct Check *k, double *wanted, double *bound);
} Check;

static double unit_roundoff(kiln_dtype dtype)
{
    return ldexp(1, dtype == KILN_F16 ? -11 : dtype == KILN_BF16 ? -8 : dtype == KILN_F32 ? -24 : -53);
}

static double accumulator(kiln_dtype dtype) { return unit_roundoff(dtype == KILN_F64 ? KILN_F64 : KILN_F32); }

/* Roundings on the longest path of a sum of n in the defined order. */
static double path(int64_t n) { return 8 + (double)(n < 16384 ? n : 16384) / 64 + (double)n / 16384; }

/* The last rounding, to the dtype (with its least subnormal). */
static double last(const Check *k, double value)
{
    double least = k->dtype == KILN_F16 ? 0x1p-24 : k->dtype == KILN_F64 ? 0x1p-1074 : 0x1p-133;
    return unit_roundoff(k->dtype) * fabs(value) + least;
}

static kiln_tensor *record_sum(kiln_tensor *x, kiln_tensor *y)
{
    (void)y;
    return kiln_sum_axes(x, KILN_AXES(-1), false);
}
static int64_t refer_sum(const Check *k, double *wanted, double *bound)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < k->columns; i++)
            sum += k->x[r * k->columns + i], size += fabs(k->x[r * k->columns + i]);
        wanted[r] = sum;
        bound[r] = last(k, sum) + accumulator(k->dtype) * path(k->columns) * size;
    }
    return k->rows;
}

static kiln_tensor *record_var(kiln_tensor *x, kiln_tensor *y)
{
    (void)y;
    return kiln_var_axes(x, KILN_AXES(-1), 1, false);
}
static int64_t refer_var(const Check *k, double *wanted, double *bound)
{
    double n = (double)k->columns;
    for (int64_t r = 0; r < k->rows; r++) {
        const double *x = &k->x[r * k->columns];
        double mean = 0, sum = 0, size = 0;
        for (int64_t i = 0; i < k->columns; i++)
            mean += x[i] / n, size += fabs(x[i]) / n;
        for (int64_t i = 0; i < k->columns; i++)
            sum += (x[i] - mean) * (x[i] - mean);
        wanted[r] = sum / (n - 1);
        double u = accumulator(k->dtype), off = u * (path(k->columns) + 2) * size; /* error of the mean */
        bound[r] = last(k, wanted[r]) + u * (path(k->columns) + 6) * wanted[r] + off * off * n / (n - 1) + 2 * off * u * size * n / (n - 1);
    }
    return k->rows;
}

static void row_extremes(const double *x, int64_t n, double *most, double *sum)
{
    *most = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        *most = fmax(*most, x[i]);
    *sum = 0;
    for (int64_t i = 0; i < n; i++)
        *sum += exp(x[i] - *most);
}

static kiln_tensor *record_softmax(kiln_tensor *x, kiln_tensor *y)
{
    (void)y;
    return kiln_softmax(x, -1);
}
static int64_t refer_softmax(const Check *k, double *wanted, double *bound)
{
    for (int64_t r = 0; r < k->rows; r++) {
        const double *x = &k->x[r * k->columns];
        double most, sum;
        row_extremes(x, k->columns, &most, &sum);
        for (int64_t i = 0; i < k->columns; i++) {
            double value = exp(x[i] - most) / sum;
            wanted[r * k->columns + i] = value;
            bound[r * k->columns + i] = last(k, value) + accumulator(k->dtype) * (path(k->columns) + 8 + 2 * (most - x[i])) * value;
        }
    }
    return k->rows * k->columns;
}

static kiln_tensor *record_log_softmax(kiln_tensor *x, kiln_tensor *y)
{
    (void)y;
    return kiln_log_softmax(x, -1);
}
static int64_t refer_log_softmax(const Check *k, double *wanted, double *bound)
{
    for (int64_t r = 0; r < k->rows; r++) {
        const double *x = &k->x[r * k->columns];
        double most, sum;
        row_extremes(x, k->columns, &most, &sum);
        for (int64_t i = 0; i < k->columns; i++) {
            double value = x[i] - most - log(sum);
            wanted[r * k->columns + i] = value;
            bound[r * k->columns + i] = last(k, value) + accumulator(k->dtype) * (path(k->columns) + 24 + 4 * fabs(value));
        }
    }
    return k->rows * k->columns;
}

static kiln_tensor *record_logsumexp(kiln_tensor *x, kiln_tensor *y)
{
    (void)y;
    return kiln_logsumexp_axes(x, KILN_AXES(-1), false);
}
static int64_t refer_logsumexp(const Check *k, double *wanted, double *bound)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double most, sum;
        row_extremes(&k->x[r * k->columns], k->columns, &most, &sum);
        wanted[r] = most + log(sum);
        bound[r] = last(k, wanted[r]) + accumulator(k->dtype) * (path(k->columns) + 24 + 2 * fabs(wanted[r]));
    }
    return k->rows;
}

/* layer norm with the first rows of y as weight and bias */
static kiln_tensor *record_layer_norm(kiln_tensor *x, kiln_tensor *y)
{
    return kiln_layer_norm(x, kiln_select(y, 0, 0), kiln_select(y, 0, -1), 1e-5);
}
static int64_t refer_layer_norm(const Check *k, double *wanted, double *bound)
{
    double n = (double)k->columns;
    for (int64_t r = 0; r < k->rows; r++) {
        const double *x = &k->x[r * k->columns], *bias = &k->y[(k->rows - 1) * k->columns];
        double mean = 0, var = 0, size = 0;
        for (int64_t i = 0; i < k->columns; i++)
            mean += x[i] / n, size += fabs(x[i]) / n;
        for (int64_t i = 0; i < k->columns; i++)
            var += (x[i] - mean) * (x[i] - mean) / n;
        double scale = 1 / sqrt(var + 1e-5), u = accumulator(k->dtype);
        for (int64_t i = 0; i < k->columns; i++) {
            double hat = (x[i] - mean) * scale, value = hat * k->y[i] + bias[i];
            wanted[r * k->columns + i] = value;
            bound[r * k->columns + i] =
                last(k, value) + 2 * u * (path(k->columns) + 12) * (fabs(hat) + size * scale) * fabs(k->y[i]) + 4 * u * fabs(bias[i]);
        }
    }
    return k->rows * k->columns;
}

static kiln_tensor *record_matmul(kiln_tensor *x, kiln_tensor *y) { return kiln_matmul(x, kiln_transpose(y)); }
static int64_t refer_matmul(const Check *k, double *wanted, double *bound)
{
    for (int64_t r = 0; r < k->rows; r++)
        for (int64_t c = 0; c < k->rows; c++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < k->columns; i++) {
                double p = k->x[r * k->columns + i] * k->y[c * k->columns + i];
                sum += p, size += fabs(p);
            }
            wanted[r * k->rows + c] = sum;
            bound[r * k->rows + c] = last(k, sum) + accumulator(k->dtype) * (double)(k->columns + 1) * size;
        }
    return k->rows * k->rows;
}

static kiln_tensor *record_cumsum(kiln_tensor *x, kiln_tensor *y)
{
    (void)y;
    return kiln_cumsum(x, -1);
}
static int64_t refer_cumsum(const Check *k, double *wanted, double *bound)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < k->columns; i++) {
            int64_t at = r * k->columns + i;
            sum += k->x[at], size += fabs(k->x[at]);
            wanted[at] = sum;
            bound[at] = last(k, sum) + accumulator(k->dtype) * (double)(i + 1) * size;
        }
    }
    return k->rows * k->columns;
}

typedef struct ReferenceRow {
    kiln_tensor *(*record)(kiln_tensor *x, kiln_tensor *y);
    int64_t (*refer)(const Check *k, double *wanted, double *bound);
} ReferenceRow;

static void check_reference(const Case *c, const Check *k, const char *mode, const char *math, const void *x, const void *y)
{
    char how[64];
    if (!case_due(NULL))
        return;
    snprintf(how, sizeof how, "%s, math=%s, double reference", mode, math);
    set_option("mode", mode);
    set_option("math", math);
    int64_t most = k->rows * (k->columns > k->rows ? k->columns : k->rows);
    double *wanted = malloc(sizeof *wanted * (size_t)(2 * most)), *bound = wanted + most;
    int64_t n = k->refer(k, wanted, bound);
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *out = k->record(kiln_from(k->dtype, c->in[0].shape, x), kiln_from(k->dtype, c->in[0].shape, y));
    size_t bytes = (size_t)n * kiln_dtype_size(k->dtype);
    void *got = malloc(bytes + 1);
    if (kiln_numel(out) != n || kiln_read(out, k->dtype, got, bytes) != KILN_OK)
        report(c, how, "%" PRId64 " elements, %s", kiln_numel(out), kiln_error_message());
    else
        for (int64_t i = 0; i < n; i++) {
            double value = value_as_double(k->dtype, got, i);
            if (!(fabs(value - wanted[i]) <= bound[i])) {
                report(c, how, "element %" PRId64 " is %.17g, expected %.17g within %.3g, error %.3g", i, value, wanted[i], bound[i],
                       fabs(value - wanted[i]));
                break;
            }
        }
    kiln_scope_end(scope);
    free(got);
    free(wanted);
}

static void group_reference(const Group *g)
{
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_F16, KILN_BF16};
    static const int64_t sizes[][2] = {{3, 5}, {16, 100}, {4, 4097}, {2, 50000}, {1, 2}};
    static const char *const modes[][2] = {{"jit", "fast"}, {"jit", "strict"}, {"eager", "fast"}, {"interp", "strict"}};
    const ReferenceRow *row = g->row;
    for (int d = 0; d < 4; d++)
        for (int s = 0; s < 5; s++) {
            Check k = {g->name, dtypes[d], sizes[s][0], size_here(sizes[s][1]), NULL, NULL, row->record, row->refer};
            Case c = {.op = g->name, .n_in = 1};
            c.in[0] = (Spec){k.dtype, {2, {k.rows, k.columns}}, VALUES_PLAIN, 0};
            int64_t n = k.rows * k.columns;
            char *x = malloc((size_t)(2 * n) * 8), *y = x + n * 8;
            double *exact = malloc(sizeof *exact * (size_t)(2 * n));
            values_fill(k.dtype, VALUES_PLAIN, 0, 91 + (uint64_t)s, n, x);
            values_fill(k.dtype, VALUES_PLAIN, 0, 17 + (uint64_t)s, n, y);
            for (int64_t i = 0; i < n; i++) {
                exact[i] = value_as_double(k.dtype, x, i);
                exact[n + i] = value_as_double(k.dtype, y, i);
            }
            k.x = exact;
            k.y = exact + n;
            for (int m = 0; m < (on_device() ? 2 : 4); m++)
                check_reference(&c, &k, modes[m][0], modes[m][1], x, y);
            free(x);
            free(exact);
        }
}

#define CHAIN(name)                                                       \
    {                                                                     \
        "chain_" #name, group_chain, &(const ChainRow) { pattern_##name } \
    }
#define REFERENCE(name)                                                                            \
    {                                                                                              \
        "reference_" #name, group_reference, &(const ReferenceRow) { record_##name, refer_##name } \
    }

static const Group groups[] = {
    CHAIN(elementwise),   CHAIN(centred),        CHAIN(twice),      CHAIN(softmax),     CHAIN(outputs),
    CHAIN(views),         CHAIN(long),           CHAIN(diamond),    CHAIN(best),        CHAIN(scan),
    CHAIN(layer),         REFERENCE(sum),        REFERENCE(var),    REFERENCE(softmax), REFERENCE(log_softmax),
    REFERENCE(logsumexp), REFERENCE(layer_norm), REFERENCE(matmul), REFERENCE(cumsum),
};

int main(int argc, char **argv) { return run_groups("diff_chain", groups, sizeof groups / sizeof *groups, argc, argv); }

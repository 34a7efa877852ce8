/*
 * Prices options by simulation: many paths of a price, the average payoff, and how sure it is.
 *
 *     log S(i+1) = log S(i) + (r - v^2/2) dt + v sqrt(dt) z,  z normal          (Black and Scholes 1973)
 *
 * A batch of paths, from the random numbers to the sums of payoffs and of their squares, is a kiln_function without inputs: each call draws
 * the next numbers of the stream. Where there is a closed form the result stands beside it. The call on the arithmetic mean has none; the one on
 * the geometric mean, of the same paths, is its control variate (Kemna and Vorst 1990).
 */
#include <kiln.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char program[] = "options";
#include "arguments.h"
#include "progress.h"

enum { ASIAN, GEOMETRIC, EUROPEAN, KINDS };
static const char *const kind_names[KINDS] = {"asian", "geometric", "european"};

typedef struct Option {
    int kind;
    long paths, batch, fixings, seed;
    double spot, strike, rate, volatility, years;
} Option;

static const char help[] =
    "usage: options [options]\n"
    "prices a call by simulation, with the half width of its 95 % interval, and beside its closed form where there is one\n"
    "  --kind X         asian (on the arithmetic mean of the fixings), geometric (on theirs), european (asian)\n"
    "  --paths N        paths in all, rounded up to whole batches (1048576)\n"
    "  --batch N        paths computed together (65536)\n"
    "  --fixings N      steps of a path (64)\n"
    "  --spot, --strike, --rate, --volatility, --years R   (100, 100, 0.05, 0.2, 1)\n"
    "  --seed N         of the random numbers (1)\n"
    "  --help           this\n";

static Option read_options(int argc, char **argv)
{
    Option o = {ASIAN, 1048576, 65536, 64, 1, 100, 100, 0.05, 0.2, 1};
    const char *kind = kind_names[ASIAN];
    const Known known[] = {
        {"--paths", &o.paths, 2, 1000000000000, .text = NULL},      {"--batch", &o.batch, 1, 100000000, .text = NULL},
        {"--fixings", &o.fixings, 1, 100000, .text = NULL},         {"--seed", &o.seed, 0, 1000000000, .text = NULL},
        {"--spot", .number = &o.spot, .low = 1e-6, .high = 1e6},    {"--strike", .number = &o.strike, .low = 1e-6, .high = 1e6},
        {"--rate", .number = &o.rate, .low = -1, .high = 1},        {"--volatility", .number = &o.volatility, .low = 1e-6, .high = 10},
        {"--years", .number = &o.years, .low = 1e-6, .high = 1000}, {"--kind", .text = &kind}};
    help_if_asked(help, argc, argv);
    for (int i = 1; i < argc; i++)
        take_option(known, sizeof known / sizeof *known, argc, argv, &i);
    for (o.kind = 0; o.kind < KINDS && strcmp(kind, kind_names[o.kind]);)
        o.kind++;
    if (o.kind == KINDS)
        refuse("--kind", "asian, geometric or european is needed");
    return o;
}

/* ---- a batch of paths ---- */

/* max(price - strike, 0), discounted, in f64 for the sums. */
static kiln_tensor *payoff(const Option *o, kiln_tensor *price)
{
    return kiln_mul(kiln_cast(kiln_relu(kiln_sub(price, o->strike)), KILN_F64), exp(-o->rate * o->years));
}

/* out: sums over the batch: x, x^2, and for the arithmetic mean those of its control c: c, c^2, x c. */
static void simulate(kiln_tensor **in, kiln_tensor **out, void *user)
{
    const Option *o = user;
    double dt = o->years / (double)o->fixings, drift = (o->rate - o->volatility * o->volatility / 2) * dt;
    kiln_tensor *z = kiln_randn(KILN_F32, KILN_SHAPE(o->batch, o->fixings));
    kiln_tensor *steps = kiln_add(kiln_mul(z, o->volatility * sqrt(dt)), drift), *sums[5];
    (void)in;
    if (o->kind == EUROPEAN) {
        sums[0] = payoff(o, kiln_mul(kiln_exp(kiln_sum_axes(steps, KILN_AXES(1), false)), o->spot));
    } else {
        kiln_tensor *path = kiln_cumsum(steps, 1); /* log S(i) / S(0) */
        sums[0] = payoff(o, kiln_mul(kiln_exp(kiln_mean_axes(path, KILN_AXES(1), false)), o->spot));
        if (o->kind == ASIAN) {
            sums[2] = sums[0];
            sums[0] = payoff(o, kiln_mul(kiln_mean_axes(kiln_exp(path), KILN_AXES(1), false), o->spot));
        }
    }
    int n = o->kind == ASIAN ? 5 : 2;
    if (n == 5) {
        sums[4] = kiln_mul(sums[0], sums[2]);
        sums[3] = kiln_square(sums[2]);
    }
    sums[1] = kiln_square(sums[0]);
    for (int i = 0; i < n; i++)
        sums[i] = kiln_sum(sums[i]);
    out[0] = kiln_stack(sums, n, 0);
}

/* ---- closed forms ---- */

static double normal_cdf(double x) { return erfc(-x / sqrt(2)) / 2; }

/* The discounted mean of max(e^y - strike, 0), y normal. */
static double lognormal_call(const Option *o, double mean, double deviation)
{
    double d = (mean - log(o->strike)) / deviation;
    double whole = exp(mean + deviation * deviation / 2) * normal_cdf(d + deviation) - o->strike * normal_cdf(d);
    return exp(-o->rate * o->years) * whole;
}

static double closed_form(const Option *o)
{
    double n = (double)o->fixings, growth = (o->rate - o->volatility * o->volatility / 2) * o->years, v = o->volatility * sqrt(o->years);
    if (o->kind == EUROPEAN)
        return lognormal_call(o, log(o->spot) + growth, v);
    return lognormal_call(o, log(o->spot) + growth * (n + 1) / (2 * n), v * sqrt((n + 1) * (2 * n + 1) / (6 * n * n)));
}

/* ---- all of it ---- */

static void tell(const char *what, double price, double variance, double n)
{
    printf("%-28s %.5f +- %.5f\n", what, price, 1.96 * sqrt(variance / n));
}

int main(int argc, char **argv)
{
    Option o = read_options(argc, argv);
    kiln_seed((uint64_t)o.seed);
    kiln_function *function = kiln_function_new(simulate, 0, 1, &o);
    long batches = (o.paths + o.batch - 1) / o.batch;
    int width = o.kind == ASIAN ? 5 : 2;
    Progress progress = progress_begin(batches);
    double total[5] = {0}, millions = 1e-6 * (double)o.batch;
    for (long i = 0; i < batches; i++) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *sums;
        double part[5];
        kiln_check(kiln_function_call(function, NULL, &sums));
        kiln_check(kiln_read(sums, KILN_F64, part, sizeof *part * (size_t)width));
        kiln_scope_end(scope);
        for (int k = 0; k < width; k++)
            total[k] += part[k];
        progress_show(&progress, i + 1, "million paths/s", millions);
    }
    progress_end(&progress);
    double rate = progress_rate(&progress, batches, millions), n = (double)(batches * o.batch), mean[5];
    for (int k = 0; k < width; k++)
        mean[k] = total[k] / n;
    printf("%s call, %ld fixings, %ld paths\n", kind_names[o.kind], o.fixings, batches * o.batch);
    double variance = fmax(0, mean[1] - mean[0] * mean[0]) * n / (n - 1), exact = closed_form(&o);
    tell("simulated", mean[0], variance, n);
    if (o.kind == ASIAN) {
        double spread = fmax(0, mean[3] - mean[2] * mean[2]), both = mean[4] - mean[0] * mean[2], share = spread > 0 ? both / spread : 0;
        tell("with the geometric beside it", mean[0] - share * (mean[2] - exact), fmax(0, variance - share * both * n / (n - 1)), n);
    } else {
        printf("%-28s %.5f, %.2f standard errors away\n", "closed form", exact,
               variance > 0 ? fabs(mean[0] - exact) / sqrt(variance / n) : 0);
    }
    if (rate > 0)
        printf("%.2f million paths a second\n", rate);
    kiln_function_free(function);
    return 0;
}

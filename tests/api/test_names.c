/*
 * Functions by their names, however they are spelled (jit/fuse/names.c), and with their accuracy (NEARER in ir/rules.def).
 *
 * The tables hold expressions as people write them, read by a few functions here: x is the tensor, w one number for each of its columns, n the
 * number of these; `d = ...;` before the last one names what is used twice. Reductions along an axis keep it: sum(x, 1).
 */
#include "api.h"

#include <ctype.h>
#include <stdio.h>

static void begin(void) { begin_mode(0); }

TestSuite(names, .init = begin);

enum { ROWS = 48, COLUMNS = 48 };

/* ---- expressions ---- */

typedef struct Reading {
    const char *text, *at;
    kiln_tensor *letter[26]; /* x, w, and what was given a name */
} Reading;

static kiln_tensor *sum_of(Reading *r);

static void skip(Reading *r)
{
    while (*r->at == ' ')
        r->at++;
}

static bool sees(Reading *r, char c)
{
    skip(r);
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

static void must(Reading *r, char c) { cr_assert(sees(r, c), "%s: no `%c` at `%s`", r->text, c, r->at); }

static const struct {
    const char *name;
    kiln_tensor *(*call)(kiln_tensor *, const char *, int);
} ones[] = {{"erf", kiln_erf_at},
            {"erfc", kiln_erfc_at},
            {"tanh", kiln_tanh_at},
            {"exp", kiln_exp_at},
            {"log", kiln_log_at},
            {"sqrt", kiln_sqrt_at},
            {"rsqrt", kiln_rsqrt_at},
            {"neg", kiln_neg_at},
            {"square", kiln_square_at},
            {"sigmoid", kiln_sigmoid_at},
            {"sin", kiln_sin_at},
            {"abs", kiln_abs_at},
            {"gelu", kiln_gelu_at},
            {"silu", kiln_silu_at},
            {"relu", kiln_relu_at},
            {"gelu_tanh", kiln_gelu_tanh_at},
            {"reciprocal", kiln_reciprocal_at}};

/* sum(x, 1): along that axis, which stays. row(x, 1): the axis goes, so that what is left is repeated along the others. */
static kiln_tensor *along(Reading *r, const char *name, size_t length, kiln_tensor *x)
{
    int axis = (int)strtol(r->at, (char **)&r->at, 10);
    kiln_axes axes = KILN_AXES(axis);
    if (!strncmp(name, "sum", length))
        return kiln_sum_axes(x, axes, true);
    if (!strncmp(name, "max", length))
        return kiln_max_axes(x, axes, true);
    if (!strncmp(name, "mean", length))
        return kiln_mean_axes(x, axes, true);
    if (!strncmp(name, "var", length))
        return kiln_var_axes(x, axes, 0, true);
    if (!strncmp(name, "var1", length))
        return kiln_var_axes(x, axes, 1, true);
    if (!strncmp(name, "drop", length))
        return kiln_squeeze(x, axes);
    if (!strncmp(name, "pow", length))
        return kiln_pow(x, kiln_scalar(axis));
    if (!strncmp(name, "softmax", length))
        return kiln_softmax(x, axis);
    if (!strncmp(name, "log_softmax", length))
        return kiln_log_softmax(x, axis);
    if (!strncmp(name, "normalize", length))
        return kiln_normalize(x, axes, 1e-5);
    if (!strncmp(name, "rms_norm", length))
        return kiln_rms_norm(x, r->letter['w' - 'a'], 1e-5);
    if (!strncmp(name, "layer_norm", length))
        return kiln_layer_norm(x, r->letter['w' - 'a'], r->letter['w' - 'a'], 1e-5);
    cr_assert_fail("%s: no function %s", r->text, name);
    return NULL;
}

static kiln_tensor *called(Reading *r, const char *name, size_t length)
{
    kiln_tensor *x = sum_of(r), *y = NULL;
    if (sees(r, ','))
        y = along(r, name, length, x);
    for (size_t k = 0; k < sizeof ones / sizeof *ones && !y; k++)
        if (strlen(ones[k].name) == length && !strncmp(ones[k].name, name, length))
            y = ones[k].call(x, __FILE__, __LINE__);
    cr_assert(y, "%s: `%.*s`: %s", r->text, (int)length, name, kiln_error_message());
    must(r, ')');
    return y;
}

static kiln_tensor *value_of(Reading *r)
{
    skip(r);
    if (sees(r, '-'))
        return kiln_neg(value_of(r));
    if (sees(r, '(')) {
        kiln_tensor *x = sum_of(r);
        must(r, ')');
        return x;
    }
    if (isdigit((unsigned char)*r->at))
        return kiln_scalar(strtod(r->at, (char **)&r->at));
    const char *name = r->at;
    while (isalnum((unsigned char)*r->at) || *r->at == '_')
        r->at++;
    size_t length = (size_t)(r->at - name);
    if (sees(r, '('))
        return called(r, name, length);
    if (length == 1 && *name == 'n')
        return kiln_scalar(COLUMNS);
    cr_assert(length == 1 && islower((unsigned char)*name) && r->letter[*name - 'a'], "%s: what is `%s`?", r->text, name);
    return r->letter[*name - 'a'];
}

static kiln_tensor *product_of(Reading *r)
{
    kiln_tensor *x = value_of(r);
    for (;;)
        if (sees(r, '*'))
            x = kiln_mul(x, value_of(r));
        else if (sees(r, '/'))
            x = kiln_div(x, value_of(r));
        else
            return x;
}

static kiln_tensor *sum_of(Reading *r)
{
    kiln_tensor *x = product_of(r);
    for (;;)
        if (sees(r, '+'))
            x = kiln_add(x, product_of(r));
        else if (sees(r, '-'))
            x = kiln_sub(x, product_of(r));
        else
            return x;
}

static kiln_tensor *expression(const char *text, kiln_tensor *x, kiln_tensor *w)
{
    Reading r = {text, text, {NULL}};
    r.letter['x' - 'a'] = x;
    r.letter['w' - 'a'] = w;
    for (;;) {
        skip(&r);
        char letter = *r.at;
        bool given = islower((unsigned char)letter) && strncmp(r.at + 1, " = ", 3) == 0;
        r.at += given ? 4 : 0;
        kiln_tensor *y = sum_of(&r);
        if (!given) {
            cr_assert(*r.at == 0 && y, "%s: what is `%s`? %s", text, r.at, kiln_error_message());
            return y;
        }
        r.letter[letter - 'a'] = y;
        must(&r, ';');
    }
}

/* ---- names ---- */

static const char *const functions[] = {"gelu",        "gelu_tanh",  "silu",      "sigmoid", "softmax",
                                        "log_softmax", "layer_norm", "normalize", "rms_norm"};

/* Is `name` one of the words that a step is called by? */
static bool calls(const char *text, const char *name)
{
    const char *plan = strstr(text, "\nwould ");
    size_t length = strlen(name);
    for (const char *at = plan; at && (at = strstr(at, name)); at++) {
        bool begins = at[-1] == ' ' || at[-1] == '_', ends = at[length] == '\n' || at[length] == '_';
        bool longer = (!strcmp(name, "gelu") && !strncmp(at, "gelu_tanh", 9)) ||
                      (!strcmp(name, "softmax") && at - plan > 4 && !strncmp(at - 4, "log_", 4));
        if (begins && ends && !longer)
            return true;
    }
    return false;
}

static const char *explained(kiln_tensor *y)
{
    static char text[4096];
    cr_assert(kiln_explain(y, text, sizeof text, NULL) == KILN_OK, "%s", kiln_error_message());
    return text;
}

static kiln_tensor *input(kiln_dtype dtype) { return kiln_cast(kiln_uniform(KILN_F64, KILN_SHAPE(ROWS, COLUMNS), -3, 3), dtype); }

static kiln_tensor *evaluated(kiln_tensor *x)
{
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return x;
}

typedef struct Spelling {
    const char *name; /* NULL: none of them */
    const char *text;
} Spelling;

static const Spelling spellings[] = {
    {"gelu", "gelu(x)"},
    {"gelu", "0.5*x*(1 + erf(x/1.41421356))"},
    {"gelu", "x*0.5*(1 + erf(x*0.70710678))"},
    {"gelu", "x*0.5*(erf(0.7071067811865476*x) + 1)"},
    {"gelu", "0.5*(x*(1 + erf(x/sqrt(2))))"},
    {"gelu", "x*(0.5*(1 + erf(x/1.4142135)))"},
    {"gelu", "x*(1 + erf(x/1.4142135))/2"},
    {"gelu", "x*(0.5 + 0.5*erf(x/1.4142135))"},
    {"gelu", "0.5*x + 0.5*x*erf(x/1.4142135)"},
    {"gelu", "h = x/2; h + h*erf(x*0.70710678)"},
    {"gelu", "0.5*x*erfc(-x*0.70710678)"},
    {"gelu", "0.5*x*erfc(x*(0 - 0.70710678))"},
    {"gelu", "x - 0.5*x*erfc(x*0.70710678)"},
    {"gelu", "0.5*x*(1 - erf(-x*0.70710678))"},
    {"gelu", "y = x + w; y*0.5*(1 + erf(y*0.70710678)) + w"},
    {"gelu", "y = sin(x)*0.3; y*0.5*(1 + erf(y*0.70710678))"},
    {NULL, "x*0.5*(1 + erf(x*0.8))"},
    {NULL, "x*0.6*(1 + erf(x*0.70710678))"},
    {NULL, "x*0.5*(1 + erf(x))"},
    {NULL, "x*0.5*(1 - erf(x*0.70710678))"},
    {NULL, "x*0.5*(2 + erf(x*0.70710678))"},
    {NULL, "x*x*0.5*(1 + erf(x*0.70710678))"},
    {NULL, "sin(x)*0.5*(1 + erf(x*0.70710678))"},
    {NULL, "0.5*(1 + erf(x*0.70710678))"},
    {NULL, "0.5*x*erfc(x*0.70710678)"},
    {NULL, "x*0.5*(1 + erf(x*0.70710678 + 0.1))"},

    {"gelu_tanh", "gelu_tanh(x)"},
    {"gelu_tanh", "0.5*x*(1 + tanh(0.79788456*(x + 0.044715*x*x*x)))"},
    {"gelu_tanh", "0.5*x*(1 + tanh(0.7978845608028654*(x + 0.044715*pow(x, 3))))"},
    {"gelu_tanh", "x*0.5*(tanh((x + x*x*x*0.044715)*0.79788456) + 1)"},
    {"gelu_tanh", "0.5*x*(1 + tanh(0.79788456*x*(1 + 0.044715*x*x)))"},
    {"gelu_tanh", "0.5*x*(1 + tanh(x*0.79788456*(1 + 0.044715*square(x))))"},
    {"gelu_tanh", "x*(0.5 + 0.5*tanh(0.79788456*x + 0.035677408*x*(x*x)))"},
    {"gelu_tanh", "0.5*x*(1 + tanh(sqrt(2/3.14159265)*(x + 0.044715*x*x*x)))"},
    {"gelu_tanh", "x*sigmoid(1.5957691*(x + 0.044715*x*x*x))"},
    {"gelu_tanh", "y = x*0.3; 0.5*y*(1 + tanh(0.79788456*(y + 0.044715*y*y*y)))"},
    {"gelu_tanh", "y = x + w; 0.5*y*(1 + tanh(0.79788456*(y + 0.044715*y*y*y)))"},
    {NULL, "0.5*x*(1 + tanh(0.79788456*(x + 0.05*x*x*x)))"},
    {NULL, "0.5*x*(1 + tanh(0.8*(x + 0.044715*x*x*x)))"},
    {NULL, "0.5*x*(1 + tanh(0.79788456*(x + 0.044715*x*x)))"},
    {NULL, "0.5*x*(1 + tanh(0.79788456*(x - 0.044715*x*x*x)))"},
    {NULL, "0.5*sin(x)*(1 + tanh(0.79788456*(x + 0.044715*x*x*x)))"},
    {NULL, "0.5*(1 + tanh(0.79788456*(x + 0.044715*x*x*x)))"},

    {"silu", "silu(x)"},
    {"silu", "x*sigmoid(x)"},
    {"silu", "sigmoid(x)*x"},
    {"silu", "x/(1 + exp(-x))"},
    {"silu", "x/(exp(-1*x) + 1)"},
    {"silu", "x*(1/(1 + exp(-x)))"},
    {"silu", "reciprocal(1 + exp(-x))*x"},
    {NULL, "x/(1 + exp(x))"},
    {NULL, "x/(2 + exp(-x))"},
    {NULL, "w/(1 + exp(-x))"},
    {"sigmoid", "sigmoid(x)"},
    {"sigmoid", "1/(1 + exp(-x))"},
    {"sigmoid", "1/(exp(neg(x)) + 1)"},
    {"sigmoid", "w*(1/(1 + exp(-x)))"},
    {NULL, "1/(1 + exp(x))"},
    {NULL, "1/(1.01 + exp(-x))"},

    {"softmax", "softmax(x, 1)"},
    {"softmax", "softmax(x, 0)"},
    {"softmax", "e = exp(x - max(x, 1)); e/sum(e, 1)"},
    {"softmax", "e = exp(x - max(x, 0)); e/sum(e, 0)"},
    {"softmax", "e = exp(x - max(x, 1)); e*(1/sum(e, 1))"},
    {"softmax", "e = exp(x - max(x, 1)); reciprocal(sum(e, 1))*e"},
    {"softmax", "e = exp(x); e/sum(e, 1)"},
    {"softmax", "y = x*0.125 + w; e = exp(y - max(y, 1)); e/sum(e, 1)"},
    {"softmax", "e = exp(x - max(x, 0)); e/drop(sum(e, 0), 0)"},
    {NULL, "e = exp(x - max(x, 1)); e/drop(sum(e, 1), 1)"}, /* rows by sums of others: square, so it has the shape */
    {NULL, "e = exp(x - max(x, 1)); f = exp(x); f/sum(e, 1)"},
    {NULL, "e = exp(x - max(x, 1)); sum(e, 1)/e"},
    {NULL, "e = exp(x - max(x, 1)); e/max(e, 1)"},
    {NULL, "e = x - max(x, 1); e/sum(e, 1)"},

    {"log_softmax", "log_softmax(x, 1)"},
    {"log_softmax", "s = x - max(x, 1); s - log(sum(exp(s), 1))"},
    {"log_softmax", "s = x - max(x, 0); s - log(sum(exp(s), 0))"},
    {NULL, "s = x - max(x, 1); s - log(sum(exp(s), 0))"},
    {NULL, "s = x - max(x, 1); x - log(sum(exp(s), 1))"},
    {NULL, "s = x - max(x, 1); s + log(sum(exp(s), 1))"},

    {"layer_norm", "layer_norm(x, 1)"},
    {"layer_norm", "normalize(x, 1)"},
    {"layer_norm", "d = x - mean(x, 1); d/sqrt(mean(d*d, 1) + 0.00001)"},
    {"layer_norm", "d = x - mean(x, 1); d*rsqrt(mean(square(d), 1) + 0.00001)"},
    {"layer_norm", "d = x - mean(x, 1); w*d/sqrt(mean(pow(d, 2), 1) + 0.001) + w"},
    {"layer_norm", "d = x - mean(x, 1); d*(1/sqrt(mean(d*d, 1) + 0.00001))*w + w"},
    {"layer_norm", "d = x - sum(x, 1)/n; d/sqrt(sum(d*d, 1)/n + 0.00001)"},
    {"layer_norm", "d = x - sum(x, 1)*(1/n); d/sqrt(sum(d*d, 1)*(1/n) + 0.00001)"},
    {"normalize", "normalize(x, 0)"},
    {"normalize", "d = x - mean(x, 0); d/sqrt(mean(d*d, 0) + 0.00001)"},
    {NULL, "d = x - sum(x, 1)/7; d/sqrt(sum(d*d, 1)/7 + 0.00001)"},
    {NULL, "d = x - mean(x, 1); d/sqrt(sum(d*d, 1)/(n - 1) + 0.00001)"},
    {NULL, "d = x - mean(x, 1); d/(mean(d*d, 1) + 0.00001)"},
    {NULL, "d = x - mean(x, 1); x/sqrt(mean(d*d, 1) + 0.00001)"},
    {"rms_norm", "rms_norm(x, 1)"},
    {"rms_norm", "x/sqrt(mean(x*x, 1) + 0.00001)"},
    {"rms_norm", "x*rsqrt(mean(square(x), 1) + 0.00001)*w"},
    {"rms_norm", "x/sqrt(sum(x*x, 1)/n + 0.00001)"},
    {"rms_norm", "d = x - max(x, 1); d/sqrt(mean(d*d, 1) + 0.00001)"},
    {NULL, "x/sqrt(sum(x*x, 1) + 0.00001)"},
    {NULL, "x/sqrt(mean(abs(x), 1) + 0.00001)"},
    {NULL, "x/sqrt(drop(mean(x*x, 1), 1) + 0.00001)"},
};

/* evaluate: each, so that the next finds compiled programs of its structure: names are never those of others. */
static void check_names(kiln_dtype dtype, const char *math, bool evaluate)
{
    kiln_scope *scope = kiln_scope_begin();
    set_option("math", math);
    kiln_tensor *x = evaluated(input(dtype)), *w = evaluated(kiln_ones(dtype, KILN_SHAPE(COLUMNS)));
    for (size_t k = 0; k < sizeof spellings / sizeof *spellings; k++) {
        const Spelling *s = &spellings[k];
        kiln_tensor *y = expression(s->text, x, w);
        const char *text = explained(y);
        for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
            bool part = !strcmp(functions[i], "sigmoid") && (strstr(s->text, "sigmoid(") || (s->name && !strcmp(s->name, "silu")));
            bool expected = s->name && !strcmp(functions[i], s->name);
            cr_expect(part || calls(text, functions[i]) == expected, "%s, %s: %s is %scalled %s:\n%s", kiln_dtype_name(dtype), math,
                      s->text, expected ? "not " : "", functions[i], text);
        }
        if (evaluate)
            cr_expect(kiln_eval(y) == KILN_OK, "%s: %s", s->text, kiln_error_message());
    }
    kiln_scope_end(scope);
}

Test(names, each_spelling_is_called_by_its_name)
{
    check_names(KILN_F32, "fast", true);
    check_names(KILN_F32, "strict", false);
    check_names(KILN_F64, "fast", false);
    check_names(KILN_BF16, "fast", false);
    check_names(KILN_F16, "strict", false);
}

/* ---- accuracy ---- */

enum { POINTS = 4099 };

static void read_f64(kiln_tensor *x, double *out)
{
    cr_assert(kiln_read(kiln_cast(x, KILN_F64), KILN_F64, out, POINTS * sizeof *out) == KILN_OK, "%s", kiln_error_message());
}

/* Of all of the range and of what is special. */
static kiln_tensor *points(kiln_dtype dtype)
{
    static double x[POINTS];
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e30, -1e30, 1e-30, -1e-30, 6e4, -6e4};
    for (int i = 0; i < POINTS; i++)
        x[i] = (size_t)i < sizeof special / sizeof *special ? special[i] : (i - POINTS / 2) * (i % 2 ? 0.0052 : 0.046);
    return evaluated(kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(POINTS), x), dtype));
}

/* The largest error relative to `exact`, of values that are not tiny; what is no number, infinite or zero in one is in the other. */
static double worst(const char *text, kiln_tensor *y, kiln_tensor *exact, double tiny)
{
    static double a[POINTS], b[POINTS];
    double most = 0;
    read_f64(y, a);
    read_f64(exact, b);
    for (int i = 0; i < POINTS; i++) {
        cr_expect(isnan(a[i]) == isnan(b[i]) && isinf(a[i]) == isinf(b[i]), "%s: point %d is %g, not %g", text, i, a[i], b[i]);
        if (isfinite(b[i]) && fabs(b[i]) > tiny && fabs(a[i] - b[i]) > most * fabs(b[i]))
            most = fabs(a[i] - b[i]) / fabs(b[i]);
    }
    return most;
}

/* By hand as by name, against f64. In strict mode by hand is what was written, bit for bit. */
Test(names, what_is_spelled_by_hand_is_as_accurate)
{
    static const struct {
        const char *hand, *name;
        double as_written; /* its error in strict mode, at least */
    } pairs[] = {{"0.5*x*(1 + erf(x/1.41421356))", "gelu(x)", 0.9},
                 {"x*0.5*(1 + erf(x*0.70710678))", "gelu(x)", 0.9},
                 {"x*(0.5 + 0.5*erf(x*0.70710678))", "gelu(x)", 0.9},
                 {"1/(1 + exp(-x))", "sigmoid(x)", 0},
                 {"x*sigmoid(x)", "silu(x)", 0},
                 {"x/(1 + exp(-x))", "silu(x)", 0},
                 {"x*(1/(1 + exp(-x)))", "silu(x)", 0}};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = points(KILN_F32), *wide = evaluated(kiln_cast(x, KILN_F64));
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        kiln_tensor *exact = expression(pairs[k].name, wide, NULL), *by_itself = expression(pairs[k].name, x, NULL);
        set_option("math", "fast");
        double by_hand = worst(pairs[k].hand, expression(pairs[k].hand, x, NULL), exact, 1e-37);
        double by_name = worst(pairs[k].name, by_itself, exact, 1e-37);
        cr_expect_leq(by_hand, 2 * by_name, "%s: off by %g, where %s is by %g", pairs[k].hand, by_hand, pairs[k].name, by_name);
        set_option("math", "strict");
        kiln_tensor *written = expression(pairs[k].hand, x, NULL), *interpreted = expression(pairs[k].hand, x, NULL);
        cr_expect_geq(worst(pairs[k].hand, written, exact, 1e-37), pairs[k].as_written, "%s", pairs[k].hand);
        set_option("mode", "interp");
        cr_expect_eq(worst(pairs[k].hand, written, evaluated(interpreted), 0), 0, "%s is not what was written", pairs[k].hand);
        set_option("mode", "jit");
    }
    kiln_scope_end(scope);
}

/* ---- where they stand ---- */

static char said[1 << 16];
static kiln_log_buffer log_text = {said, sizeof said, 0};

/* What fusion says of x, which is computed. */
static const char *told(kiln_tensor *x)
{
    memset(said, 0, sizeof said);
    log_text = (kiln_log_buffer){said, sizeof said, 0};
    kiln_set_log_sink(kiln_log_into, &log_text);
    set_option("log", "fusion");
    (void)evaluated(x);
    set_option("log", "");
    kiln_set_log_sink(NULL, NULL);
    return said;
}

static int64_t compiles(void)
{
    kiln_stats stats = stats_now();
    return stats.compiles;
}

static const char gelu_text[] = "0.5*x*(1 + erf(x*0.70710678))";

/* A gradient: the forward half has its name and its accuracy, and erf, or exp(-x) of a SiLU, is computed once. */
Test(names, with_a_gradient)
{
    static const char *const texts[][2] = {{gelu_text, "gelu(x)"}, {"x/(1 + exp(-x))", "silu(x)"}, {"x*sigmoid(x)", "silu(x)"}};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        double y[2][2], g[2][2];
        for (int side = 0; side < 2; side++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = kiln_param(kiln_from(KILN_F32, KILN_SHAPE(2), (float[]){-5, 1.5F})), *grad;
            kiln_tensor *out = expression(texts[k][side], x, NULL);
            cr_assert(kiln_grad(kiln_sum(out), &x, 1, &grad) == KILN_OK, "%s", kiln_error_message());
            cr_assert(kiln_eval_many((kiln_tensor *[]){out, grad}, 2) == KILN_OK, "%s", kiln_error_message());
            cr_assert(kiln_read(kiln_cast(out, KILN_F64), KILN_F64, y[side], sizeof *y) == KILN_OK);
            cr_assert(kiln_read(kiln_cast(grad, KILN_F64), KILN_F64, g[side], sizeof *g) == KILN_OK);
            kiln_scope_end(scope);
        }
        for (int i = 0; i < 2; i++) {
            cr_expect_leq(fabs(y[0][i] - y[1][i]), 2e-6 * fabs(y[1][i]), "%s: %g, %g", texts[k][0], y[0][i], y[1][i]);
            cr_expect_leq(fabs(g[0][i] - g[1][i]), 2e-6 * fabs(g[1][i]) + 1e-7, "%s: gradient %g, %g", texts[k][0], g[0][i], g[1][i]);
        }
    }
}

static void in_step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y;
    *carry_out = expression(user, *carry, NULL);
}

static void of_index(kiln_tensor **in, kiln_tensor **out, void *user) { *out = expression(user, *in, NULL); }

Test(names, in_loops_and_maps)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = evaluated(input(KILN_F32)), *y;
    cr_assert(kiln_scan(in_step, 3, 0, 1, &x, &y, 0, NULL, 0, NULL, (void *)(uintptr_t)gelu_text) == KILN_OK, "%s", kiln_error_message());
    const char *log = told(y);
    cr_expect(strstr(log, "mul: GELU: x"), "%s", log);
    cr_assert(kiln_map(of_index, 1, &x, NULL, 0, 1, &y, (void *)(uintptr_t) "e = exp(x - max(x, 0)); e/sum(e, 0)") == KILN_OK, "%s",
              kiln_error_message());
    log = told(y);
    cr_expect(strstr(log, "div: softmax: ") && strstr(log, "kernel 0 softmax makes"), "%s", log);
    kiln_scope_end(scope);
}

/* Along an axis of any length: the count of a mean is no reason to compile again, and the names stay. */
Test(names, of_any_length)
{
    static const char *const texts[] = {"d = x - mean(x, 1); d/sqrt(mean(d*d, 1) + 0.00001)", "x/sqrt(mean(x*x, 1) + 0.00001)",
                                        "e = exp(x - max(x, 1)); e/sum(e, 1)"};
    static const char *const names[] = {"layer_norm", "rms_norm", "softmax"};
    for (int marked = 0; marked < 2; marked++)
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            kiln_scope *scope = kiln_scope_begin();
            for (int64_t n = 100; n < 600; n += 100) {
                kiln_tensor *x = evaluated(kiln_uniform(KILN_F32, KILN_SHAPE(8 + marked, n), -1, 1));
                if (marked)
                    cr_assert(kiln_mark_dynamic(x, 1, 1, 100000) == KILN_OK, "%s", kiln_error_message());
                int64_t compiled = compiles();
                const char *log = told(expression(texts[k], x, NULL));
                bool again = compiles() > compiled;
                cr_expect(again == (n == 100 || (n == 200 && !marked)), "%s at %d: %s", texts[k], (int)n,
                          again ? "compiled" : "not compiled");
                char line[40];
                snprintf(line, sizeof line, "kernel 0 %s makes", names[k]);
                cr_expect(!again || strstr(log, line), "%s at %d:\n%s", texts[k], (int)n, log);
            }
            kiln_scope_end(scope);
        }
}

/* A number that varies: what is compiled then has no name, is right for each, and nothing is compiled for each. */
Test(names, of_numbers_that_vary)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = evaluated(input(KILN_F32)), *w = NULL;
    static const char *const texts[] = {gelu_text, "0.5*x*(1 + erf(x*0.6))", "0.5*x*(1 + erf(x*0.5))", "0.5*x*(1 + erf(x*0.4))", gelu_text};
    int64_t before = compiles();
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        kiln_tensor *y = expression(texts[k], x, w);
        bool gelu = calls(explained(y), "gelu");
        cr_expect(!gelu || texts[k] == gelu_text, "%s", texts[k]);
        static double a[ROWS * COLUMNS], b[ROWS * COLUMNS];
        cr_assert(kiln_read(kiln_cast(y, KILN_F64), KILN_F64, a, sizeof a) == KILN_OK);
        set_option("mode", "interp");
        cr_assert(kiln_read(kiln_cast(expression(texts[k], x, w), KILN_F64), KILN_F64, b, sizeof b) == KILN_OK);
        set_option("mode", "jit");
        for (int i = 0; i < ROWS * COLUMNS; i++)
            cr_assert_float_eq(a[i], b[i], 1e-6, "%s: %g, %g", texts[k], a[i], b[i]);
    }
    cr_expect_leq(compiles() - before, 2 * 2 + 2, "%d compiles", (int)(compiles() - before));
    kiln_scope_end(scope);
}

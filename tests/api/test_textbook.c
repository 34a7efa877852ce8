/*
 * The examples with which a course on compilers begins, as C programs: what is computed, in how many kernels, and what the log says about it.
 * Each runs as its own process, with the log in `said`, a line "topic: text" after the other.
 */
#include "api.h"

#include <stdio.h>

static char said[1 << 20];
static size_t said_bytes;

static void listen(void *user, int level, const char *topic, const char *line)
{
    (void)user, (void)level;
    said_bytes += (size_t)snprintf(said + said_bytes, sizeof said - said_bytes, "%s: %s\n", topic, line);
    cr_assert(said_bytes < sizeof said);
}

static void start(const char *topics)
{
    kiln_set_log_sink(listen, NULL);
    set_option("cache", "off");
    set_option("log", topics);
    said[said_bytes = 0] = '\0';
}

static void forget(void) { said[said_bytes = 0] = '\0'; }

/* The line that holds both texts; "": there is none. */
static const char *line_with(const char *topic, const char *text)
{
    static char line[4096];
    for (const char *at = said; *at; at += strcspn(at, "\n") + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (strncmp(line, topic, strlen(topic)) == 0 && strstr(line, text))
            return line;
    }
    return "";
}

static int lines_with(const char *topic, const char *text)
{
    char line[4096];
    int n = 0;
    for (const char *at = said; *at; at += strcspn(at, "\n") + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        n += strncmp(line, topic, strlen(topic)) == 0 && strstr(line, text);
    }
    return n;
}

#define SAYS(topic, text) cr_assert(*line_with(topic, text), "no line of %s says '%s' in:\n%.6000s", topic, text, said)
#define SILENT(topic, text) cr_assert(!*line_with(topic, text), "%s", line_with(topic, text))

static int64_t kernels(void)
{
    kiln_stats stats = stats_now();
    return stats.kernels;
}

static int64_t compiles(void)
{
    kiln_stats stats = stats_now();
    return stats.compiles;
}

static kiln_tensor *ramp(int64_t n)
{
    kiln_tensor *x = kiln_arange(KILN_F32, 1, (double)n + 1, 1);
    cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message());
    return x;
}

static void read4(kiln_tensor *x, float out[4])
{
    cr_assert(kiln_read(x, KILN_F32, out, 4 * sizeof *out) == KILN_OK, "%s", kiln_error_message());
}

/* The accounts of one compile: each line begins with what the one before left. */
static void adds_up(void)
{
    unsigned before = 0, after = 0, left = 0;
    int lines = 0;
    for (const char *at = said; *at; at += strcspn(at, "\n") + 1) {
        char name[32];
        if (sscanf(at, "passes: %31s %u -> %u nodes", name, &before, &after) != 3)
            continue;
        cr_assert(lines > 0 || strcmp(name, "recorded") == 0, "%s comes first", name);
        cr_assert(lines == 0 || before == left, "%s begins with %u nodes, %u were left", name, before, left);
        left = after;
        lines++;
    }
    cr_assert_eq(lines, 8, "%d lines:\n%s", lines, said);
}

/* --- programs ------------------------------------------------------------------------------------------------------------------ */

/* y = relu(x w + b): one loop, nothing stored in between. */
Test(textbook, activation)
{
    kiln_tensor *x = ramp(4), *w = ramp(4), *b = ramp(4);
    int64_t before = kernels();
    float y[4];
    start("passes,kernels");
    read4(kiln_relu(kiln_sub(kiln_mul(x, w), kiln_mul(b, kiln_scalar(3)))), y);
    cr_assert(y[0] == 0 && y[1] == 0 && y[2] == 0 && y[3] == 4);
    cr_assert_eq(kernels() - before, 1);
    cr_assert_eq(lines_with("kernels", "kernel 0:"), 1);
    SAYS("passes", "recorded     8 -> 8 nodes: 0 not needed, 0 merged"); /* three inputs, a number, mul, mul, sub, relu */
    adds_up();
}

/* A product that nobody asks for is recorded, told, and not computed. */
Test(textbook, dead_product)
{
    kiln_tensor *x = ramp(4), *y = ramp(4), *dead = kiln_exp(kiln_mul(x, y));
    float sum[4];
    start("passes,kernels");
    read4(kiln_add(x, y), sum);
    SAYS("passes", "recorded     5 -> 3 nodes: 2 not needed, 0 merged");
    adds_up();
    SILENT("kernels", "exp");
    cr_assert(!kiln_is_evaluated(dead) && sum[3] == 8);
    forget();
    read4(kiln_sub(x, y), sum);
    SAYS("passes", "recorded     5 -> 3 nodes: 2 not needed, 0 merged"); /* still the same two; the sum was needed once */
}

/* (x + y) (x + y): the sum is made once, at the door. */
Test(textbook, common_subexpression)
{
    kiln_tensor *x = ramp(4), *y = ramp(4);
    float z[4];
    start("passes,+passes,kernels");
    read4(kiln_mul(kiln_sin(kiln_add(x, y)), kiln_cos(kiln_add(x, y))), z);
    SAYS("passes", "recorded     7 -> 6 nodes: 0 not needed, 1 merged");
    adds_up();
    cr_assert_eq(lines_with("kernels", " = add "), 1);
}

/* Each of eight identities is found, and named once. */
Test(textbook, eight_rules)
{
    kiln_tensor *x = ramp(4), *y = x;
    int32_t zeros[4] = {0}, got[4];
    float z[4];
    start("passes");
    y = kiln_mul(y, kiln_scalar(1));
    y = kiln_sub(y, kiln_scalar(0));
    y = kiln_div(y, kiln_scalar(1));
    y = kiln_neg(kiln_neg(y));
    y = kiln_maximum(y, y);
    y = kiln_abs(kiln_neg(y));
    y = kiln_pow(y, kiln_scalar(2));
    read4(kiln_sqrt(kiln_add(y, kiln_scalar(-0.0))), z);
    cr_assert(z[0] == 1 && z[3] == 4);
    static const char *const rules[] = {"mul_one 1",  "sub_zero 1", "div_one 1", "neg_neg 1",
                                        "max_self 1", "abs_neg 1",  "pow_two 1", "add_minus_zero 1"};
    for (int i = 0; i < 8; i++)
        SAYS("passes", rules[i]);
    adds_up();
    kiln_tensor *n = kiln_from(KILN_I32, KILN_SHAPE(4), zeros);
    cr_assert(kiln_read(kiln_mul(n, kiln_int(0)), KILN_I32, got, sizeof got) == KILN_OK && got[0] == 0);
    SAYS("passes", "mul_zero 1");
}

static kiln_tensor *model(kiln_tensor *x, kiln_tensor *w)
{
    kiln_tensor *h = kiln_tanh(kiln_add(kiln_mul(x, w), kiln_scalar(0.5)));
    return kiln_softmax(kiln_mul(h, kiln_scalar(1)), 0);
}

/* The same model without rewriting and fusion computes the same, in more kernels. */
Test(textbook, unoptimised_model)
{
    kiln_tensor *x = ramp(4), *w = ramp(4);
    float plain[4], good[4];
    int64_t before = kernels();
    read4(model(x, w), good);
    int64_t fused = kernels() - before;
    set_option("rewrite", "0");
    set_option("fuse", "0");
    start("recompiles");
    before = kernels();
    read4(model(x, w), plain);
    cr_assert(fused == 1 && kernels() - before > 3, "%d and %d kernels", (int)fused, (int)(kernels() - before));
    for (int i = 0; i < 4; i++)
        cr_assert(fabsf(plain[i] - good[i]) < 1e-6f);
}

/* --- graph breaks ----------------------------------------------------------------------------------------------------------------- */

static kiln_tensor *branch(kiln_tensor *x, int *read_line)
{
    double total;
    *read_line = __LINE__ + 1;
    cr_assert(kiln_item(kiln_sum(x), &total) == KILN_OK);
    return total > 0 ? kiln_exp(x) : kiln_neg(x);
}

/* A C `if` on a value: where, what was cut, what it cost, what to use instead. Told once for each pair of places. */
Test(textbook, graph_break)
{
    kiln_tensor *x = ramp(1000);
    char place[64];
    int read_line = 0;
    start("breaks");
    for (int i = 0; i < 3; i++)
        cr_assert(kiln_eval(branch(x, &read_line)) == KILN_OK);
    snprintf(place, sizeof place, "test_textbook.c:%d cut a graph in two", read_line);
    SAYS("breaks", place);
    SAYS("breaks", "kiln_where");
    SAYS("breaks", "f32[1000]");
    SAYS("breaks", "4000 bytes are read a second time");
    cr_assert_eq(lines_with("breaks", "cut a graph"), 1, "%s", said);
}

/* Without the `if`, one graph: nothing to tell. Nor where results are read after the work, nor where a result is all that is read. */
Test(textbook, no_graph_break)
{
    kiln_tensor *x = ramp(1000), *total, *y;
    double value;
    start("breaks");
    y = kiln_where(kiln_gt(kiln_sum(x), kiln_scalar(0)), kiln_exp(x), kiln_neg(x));
    cr_assert(kiln_eval(y) == KILN_OK);
    cr_assert(kiln_item(kiln_sum(y), &value) == KILN_OK);
    total = kiln_sum(x);
    cr_assert(kiln_item(total, &value) == KILN_OK);
    cr_assert(kiln_item(kiln_mul(total, kiln_scalar(2)), &value) == KILN_OK);
    x = ramp(1000);
    y = kiln_neg(x); /* recorded before the value is looked at */
    cr_assert(kiln_item(kiln_max(x), &value) == KILN_OK);
    cr_assert(kiln_eval(y) == KILN_OK);
    cr_assert_eq(said_bytes, 0, "%s", said);
}

/* The value may be computed by kiln_eval and read after. */
Test(textbook, graph_break_behind_kiln_eval)
{
    kiln_tensor *x = ramp(8), *total = kiln_sum(x);
    double value;
    start("breaks");
    cr_assert(kiln_eval(total) == KILN_OK);
    cr_assert(kiln_eval(kiln_exp(x)) == KILN_OK);
    cr_assert_eq(said_bytes, 0, "nobody looked: %s", said);
    total = kiln_sum(x);
    cr_assert(kiln_eval(total) == KILN_OK);
    cr_assert(kiln_item(total, &value) == KILN_OK);
    cr_assert(kiln_eval(kiln_exp(x)) == KILN_OK);
    SAYS("breaks", "kiln_item at ");
}

/* --- what a miss says --------------------------------------------------------------------------------------------------------------- */

static void compute(kiln_tensor *x) { cr_assert(kiln_eval(x) == KILN_OK, "%s", kiln_error_message()); }

Test(textbook, a_new_graph_at_an_old_place)
{
    kiln_tensor *x = ramp(4), *m = kiln_reshape(x, KILN_SHAPE(2, 2));
    compute(m);
    start("recompiles");
    compute(kiln_exp(x));
    SILENT("recompiles", "another one before");
    forget();
    compute(kiln_sin(x));
    SAYS("recompiles", "never_seen");
    SAYS("recompiles", "this sync point computed another one before: %1 is sin, was exp (recorded at ");
    forget();
    compute(kiln_sin(m));
    SAYS("recompiles", "%0 input is of rank 2, was of rank 1");
    forget();
    set_option("math", "strict");
    compute(kiln_sin(m));
    SAYS("recompiles", "option math is strict, was fast");
    forget();
    compute(kiln_sum_axes(m, KILN_AXES(0), false));
    compute(kiln_sum_axes(m, KILN_AXES(1), false));
    SAYS("recompiles", "%1 reduce_sum is of %0 axes(1), was of %0 axes(0)");
    forget();
    compute(kiln_cast(m, KILN_F64));
    compute(kiln_cast(m, KILN_I32));
    SILENT("recompiles", "another one before: %1 cast is of");
}

/* Guards name their program as every other line does, and the dtypes that it is for. */
Test(textbook, guards_name_their_program)
{
    kiln_tensor *x = ramp(4);
    char name[32];
    start("guards,recompiles,graph,cache");
    compute(kiln_exp(x));
    cr_assert(sscanf(line_with("guards", "program "), "guards: program %16[0-9a-f]", name) == 1, "%s", said);
    cr_assert_eq(strlen(name), 16);
    SAYS("guards", ": 1 guard; dtypes of the inputs: %0 f32");
    SAYS("recompiles", name);
    SAYS("graph", name);
    compute(kiln_exp(x));
    cr_assert(strstr(line_with("cache", "hit "), name), "%s", said);
}

/* The name is that of the entry on disk. */
Test(textbook, the_log_names_entries_on_disk)
{
    char folder[] = "/tmp/kiln_textbook_XXXXXX", name[32], command[256];
    cr_assert(mkdtemp(folder));
    start("recompiles,cache");
    set_option("cache", "on");
    set_option("cache_dir", folder);
    compute(kiln_exp(ramp(4)));
    cr_assert(sscanf(strstr(line_with("recompiles", "compiling 2 nodes"), "nodes ("), "nodes (%16[0-9a-f])", name) == 1, "%s", said);
    cr_assert(strstr(line_with("cache", "stored "), "stored "), "%s", said);
    SAYS("cache", name);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert(system(command) == 0);
}

/* With a + the IR is shown, and the assembly too. */
Test(textbook, code_is_shown)
{
    start("+output_code");
    compute(kiln_exp(ramp(4)));
    SAYS("output_code", "define ");
    SAYS("output_code", "assembly of kernel");
    SAYS("output_code", "ret");
}

/* --- arithmetic of scalars alone -------------------------------------------------------------------------------------------------- */

/* 2.0 * 3.0 is one number when the kernel runs: an argument, and the host's work. */
Test(textbook, constant_folding)
{
    kiln_tensor *x = ramp(4);
    float y[4];
    start("kernels,passes");
    read4(kiln_mul(x, kiln_mul(kiln_scalar(2), kiln_scalar(3))), y);
    cr_assert(y[0] == 6 && y[3] == 24);
    cr_assert_eq(lines_with("kernels", " = mul "), 1, "%s", said);
    cr_assert_eq(lines_with("kernels", " = cast "), 0);
    SAYS("kernels", "kernel (a0 f32 alias, s1 f32, a2 f32 out alias)");
    adds_up();
}

/* x / sqrt(d), where d is another number each time: one program, and no root in it. */
static void scaled(const char *device, const char *math)
{
    if (strcmp(device, "cuda") == 0)
        use_driver();
    set_option("device", device);
    set_option("math", math);
    kiln_tensor *x = ramp(4);
    start("output_code,+output_code");
    int64_t before = 0;
    for (int d = 1; d <= 1000; d++) {
        kiln_scope *scope = kiln_scope_begin();
        float y[4];
        read4(kiln_mul(x, kiln_div(kiln_scalar(1), kiln_sqrt(kiln_scalar(d)))), y);
        for (int i = 0; i < 4; i++) {
            float want = (float)(i + 1) * (float)(1 / sqrt((double)d));
            cr_assert(y[i] == want, "d is %d: %.9g, not %.9g", d, (double)y[i], (double)want);
        }
        if (d == 1)
            before = compiles();
        kiln_scope_end(scope);
    }
    cr_assert_eq(compiles(), before, "%d programs more", (int)(compiles() - before));
    SAYS("output_code", "fmul");
    SILENT("output_code", "sqrt");
    SILENT("output_code", "f64");
    SILENT("output_code", "double");
}

Test(textbook, root_of_a_size) { scaled("cpu", "fast"); }
Test(textbook, root_of_a_size_strict) { scaled("cpu", "strict"); }
Test(textbook, root_of_a_size_on_a_device)
{
    if (cuda_driver())
        scaled("cuda", "fast");
}

/* gelu as a course writes it: x/2 (1 + erf(x / sqrt 2)), one kernel without a root. */
Test(textbook, gelu)
{
    kiln_tensor *x = ramp(4);
    float y[4];
    start("kernels,output_code");
    int64_t before = kernels();
    kiln_tensor *inner = kiln_erf(kiln_div(x, kiln_sqrt(kiln_scalar(2))));
    read4(kiln_mul(kiln_mul(x, kiln_scalar(0.5)), kiln_add(kiln_scalar(1), inner)), y);
    for (int i = 0; i < 4; i++)
        cr_assert(fabs((double)y[i] - 0.5 * (i + 1) * (1 + erf((i + 1) / sqrt(2)))) < 1e-6 * (i + 1));
    cr_assert_eq(kernels() - before, 1);
    SILENT("output_code", "sqrt");
    cr_assert_eq(lines_with("kernels", " = cast "), 0);
}

/* Everything a scalar can be, in either mode of arithmetic: the bits of the interpreter. */
static uint64_t bits_of(kiln_tensor *x)
{
    uint64_t bits = 0;
    cr_assert(kiln_read(x, kiln_dtype_of(x), &bits, kiln_dtype_size(kiln_dtype_of(x))) == KILN_OK, "%s", kiln_error_message());
    return bits;
}

enum { EXPRESSIONS = 14 };

static kiln_tensor *expression(int which, kiln_tensor *a, kiln_tensor *b)
{
    switch (which) {
    case 0: return kiln_add(kiln_mul(a, b), a);
    case 1: return kiln_sub(kiln_maximum(a, b), kiln_square(b));
    case 2: return kiln_where(kiln_lt(a, b), kiln_neg(a), b);
    case 3: return kiln_floor_divide(a, b);
    case 4: return kiln_remainder(a, b);
    case 5: return kiln_cast(kiln_eq(a, b), KILN_I32);
    case 6: return kiln_div(a, b);
    case 7: return kiln_sqrt(kiln_abs(a));
    case 8: return kiln_exp(kiln_div(a, kiln_add(kiln_square(b), kiln_scalar(1))));
    case 9: return kiln_tanh(kiln_mul(a, kiln_scalar(0.01)));
    case 10: return kiln_pow(kiln_abs(a), kiln_scalar(1.5));
    case 11: return kiln_sin(kiln_add(a, b));
    case 12: return kiln_log(kiln_abs(kiln_mul(a, b)));
    default: return kiln_erf(kiln_sub(a, b));
    }
}

Test(textbook, scalars_have_the_bits_of_the_interpreter)
{
    static const double values[][2] = {{3, -2}, {0.1, 7}, {-0.0, 0}, {INFINITY, 2}, {NAN, 1}, {65504, 0.33}, {1e30, -1e-30}};
    static const kiln_dtype dtypes[] = {KILN_F16, KILN_BF16, KILN_F32, KILN_F64, KILN_I8, KILN_I64, KILN_U16};
    static const char *const maths[] = {"strict", "fast"};
    int64_t checked = 0;
    for (int m = 0; m < 2; m++)
        for (int e = 0; e < EXPRESSIONS; e++)
            for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
                for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                    bool is_float = dtypes[t] >= KILN_F16;
                    if (!is_float && (v > 0 || (dtypes[t] == KILN_U16)))
                        continue;
                    uint64_t bits[2];
                    for (int mode = 0; mode < 2; mode++) {
                        kiln_scope *scope = kiln_scope_begin();
                        set_option("math", maths[m]);
                        set_option("mode", mode ? "interp" : "jit");
                        kiln_tensor *a = kiln_full(dtypes[t], KILN_SHAPE(), values[v][0]),
                                    *b = kiln_full(dtypes[t], KILN_SHAPE(), values[v][1]);
                        bits[mode] = bits_of(kiln_expand(expression(e, a, b), KILN_SHAPE(1)));
                        kiln_scope_end(scope);
                    }
                    cr_assert_eq(bits[0], bits[1], "%s, expression %d of %s, %g and %g: %llx, interpreter %llx", maths[m], e,
                                 kiln_dtype_name(dtypes[t]), values[v][0], values[v][1], (unsigned long long)bits[0],
                                 (unsigned long long)bits[1]);
                    checked++;
                }
    cr_assert_gt(checked, 500);
}

/* What is random, or counts, is no such number: it has its own value at each place. */
Test(textbook, random_numbers_stay_in_the_kernel)
{
    float y[4];
    kiln_seed(1);
    read4(kiln_uniform(KILN_F32, KILN_SHAPE(4), 0, 1), y);
    cr_assert(y[0] != y[1] && y[1] != y[2] && y[2] != y[3]);
    read4(kiln_arange(KILN_F32, 0, 4, 1), y);
    cr_assert(y[0] == 0 && y[3] == 3);
}

static void attention_scale(kiln_tensor **in, kiln_tensor **out, void *user)
{
    (void)user;
    out[0] = kiln_mul(in[0], kiln_div(kiln_scalar(1), kiln_sqrt(kiln_scalar(16))));
}

/* In a kiln_function too, when it is traced, replayed, and replayed as prepared. */
Test(textbook, scalars_of_functions)
{
    kiln_function *f = kiln_function_new(attention_scale, 1, 1, NULL);
    kiln_tensor *x = ramp(4);
    for (int i = 0; i < 20; i++) {
        float y[4];
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *in[1] = {x}, *out[1];
        cr_assert(kiln_function_call(f, in, out) == KILN_OK, "%s", kiln_error_message());
        read4(out[0], y);
        cr_assert(y[0] == 0.25f && y[3] == 1);
        kiln_scope_end(scope);
    }
    kiln_function_free(f);
}

/* --- in place -------------------------------------------------------------------------------------------------------------------- */

/* An update overwrites the old value where nothing else means it, and says why not where something does. */
Test(textbook, in_place)
{
    kiln_tensor *p = ramp(1000), *other;
    start("memory");
    kiln_scope *step = kiln_scope_begin();
    cr_assert(kiln_assign(p, kiln_mul(p, kiln_scalar(0.5))) == KILN_OK);
    kiln_scope_end(step);
    compute(p);
    SAYS("memory", "output 0 overwrites input 0, f32[1000] recorded at ");
    forget();
    step = kiln_scope_begin(); /* still owns an intermediate, which is not computed by itself */
    cr_assert(kiln_assign(p, kiln_add(kiln_sin(p), p)) == KILN_OK);
    compute(p);
    SAYS("memory", "a handle or a recorded value still means it");
    kiln_scope_end(step);
    forget();
    other = kiln_positive(p);
    compute(other);
    forget();
    step = kiln_scope_begin();
    cr_assert(kiln_assign(p, kiln_mul(other, kiln_scalar(0.5))) == KILN_OK);
    kiln_scope_end(step);
    compute(p);
    SAYS("memory", "output 0 does not overwrite input 0");
    forget();
    compute(kiln_sum_axes(kiln_reshape(p, KILN_SHAPE(10, 100)), KILN_AXES(0), false));
    SAYS("memory", "no input of its dtype and size");
    forget();
    float mine[4] = {1, 2, 3, 4};
    kiln_tensor *wrapped = kiln_wrap(KILN_F32, KILN_SHAPE(4), mine, NULL, NULL);
    step = kiln_scope_begin();
    cr_assert(kiln_assign(wrapped, kiln_neg(wrapped)) == KILN_OK);
    kiln_scope_end(step);
    compute(wrapped);
    SAYS("memory", "belongs to the program or was handed out");
    cr_assert(mine[0] == 1);
}

/* Inputs are the parameters of a graph's text, wherever the walk meets them. */
Test(textbook, inputs_stand_first)
{
    kiln_tensor *x = ramp(4), *y = ramp(4);
    float z[4];
    start("graph");
    read4(kiln_mul(kiln_sin(x), kiln_exp(y)), z);
    SAYS("graph", "(%0: f32[4], %1: f32[4]) {");
    SILENT("graph", "input ");
    cr_assert(fabs((double)z[1] - sin(2) * exp(2)) < 1e-5);
}
